"""What the console is told of a world: frames as services/console sends them, and the life of one request."""

from __future__ import annotations

from typing import Any

from tests.console.world import BOUND, DEADLINE_S, MARGIN, QUANTUM, SLOTS, TOKENS, WORKERS, Asked, Line, World

HELLO = {
    "lab": True, "storm": True, "policy": True, "tenants_bound": 24, "workers_bound": 32, "decisions_bound": 40,
    "frame_ms": 200,
}  # fmt: skip


def frame(world: World, epoch_ms: float) -> dict[str, Any]:
    world.seq += 1
    waiting = sum(len(line.waiting) for line in world.lines.values())
    return {
        "seq": world.seq,
        "at_ms": epoch_ms + world.now_s * 1000,
        "uptime_s": world.now_s,
        "draining": False,
        "level": world.level,
        "classes": [{"name": "default", "level": world.level, "held": False, "weight": 1.0, "share": 1.0}],
        "policy": world.policy,
        "inflight": {"now": len(world.running), "cap": 64},
        "waiting": {"requests": waiting, "bound": 256, "cost_tokens": waiting * TOKENS},
        "totals": {
            "outcomes": dict(world.totals), "admitted": world.admitted, "degraded": world.degraded,
            "served_tokens": world.served_tokens, "worker_s": world.worker_s, "wasted_s": world.wasted_s,
        },
        "latency": latency(world),
        "first_token": {"count": 0, "p50_ms": None, "p95_ms": None},
        "capacity_tokens_per_s": world.capacity_per_s * TOKENS,
        "got_tokens_per_s": sum(at_s > world.now_s - 2 for at_s, _ in world.recent) * TOKENS / 2,
        "tenants": tenants(world),
        "other_tenants": {"tenants": 0, "waiting": 0},
        "workers": [worker(world, number) for number in range(WORKERS)],
        "other_workers": 0,
        "decisions": [decision | {"at_ms": epoch_ms + decision["at_ms"]} for decision in world.decisions],
        "decided": world.decided,
        "decisions_left_out": 0,
    }  # fmt: skip


def sharing() -> dict[str, Any]:
    """What a router shows of its leases: the second of two, in one pool."""
    classes = [
        {"name": "default", "level": 48_210.5, "lowest": 48_000.0, "turn": 51_000.0, "wanted": 12, "light": 2},
        {"name": "batch", "level": 9_300.0, "lowest": None, "turn": 50_100.0, "wanted": 0, "light": 0},
    ]
    pool = {
        "name": "weir-sim", "routers": 2, "exchange_age_s": 0.13, "exchange_stale": False, "planned_slots": 8,
        "classes": classes,
    }  # fmt: skip
    leases = [
        {
            "worker": f"worker-{number}",
            "up": True,
            "borrowed": borrowed,
            "in_flight": 3,
            "slots": SLOTS,
            "recalled": False,
        }
        for number, borrowed in enumerate((5, 3))
    ]
    return {"router": "router-1", "pools": [pool], "other_pools": 0, "leases": leases, "other_leases": 0}


def latency(world: World) -> dict[str, Any]:
    took = sorted(took_s for at_s, took_s in world.recent if at_s > world.now_s - 1)
    if not took:
        return {"count": 0} | dict.fromkeys(("p50_ms", "p95_ms", "deadline_p50_ms", "of_deadline_p95"))
    p95_s = took[int(0.95 * (len(took) - 1))]
    return {
        "count": len(took), "p50_ms": took[len(took) // 2] * 1000, "p95_ms": p95_s * 1000,
        "deadline_p50_ms": DEADLINE_S * 1000, "of_deadline_p95": p95_s / DEADLINE_S,
    }  # fmt: skip


def tenants(world: World) -> list[dict[str, Any]]:
    in_turn = [world.lines[name] for name in world.ring if world.lines[name].waiting]
    away = sorted((line for line in world.lines.values() if not line.waiting), key=lambda line: line.id)
    return [tenant(world, line, place) for place, line in enumerate(in_turn)] + [
        tenant(world, one, None) for one in away
    ]


def tenant(world: World, line: Line, place: int | None) -> dict[str, Any]:
    return {
        "id": line.id, "class": "default", "weight": line.weight, "waiting": len(line.waiting), "bound": BOUND,
        "cost_tokens": len(line.waiting) * TOKENS, "deficit_tokens": line.deficit, "debt_tokens": 0.0,
        "quantum_tokens": QUANTUM, "running": line.running, "share": 1 / max(1, len(world.lines)),
        "asked_tokens_per_s": world.rates.get(line.id, 0.0) * TOKENS, "got_tokens_per_s": 0.0,
        "position": "away" if place is None else "now", "place": place,
        "heads": [round((world.now_s - asked.arrived_s) / DEADLINE_S, 3) for asked in list(line.waiting)[:32]],
    }  # fmt: skip


def worker(world: World, number: int) -> dict[str, Any]:
    name = f"worker-{number}"
    held = [asked for asked in world.running if asked.worker == name]
    return {
        "name": name, "kind": "weir", "healthy": world.healthy[number], "draining": False, "resting": False,
        "leaving": False, "slots": SLOTS, "lookahead": 0, "inflight": len(held), "work_tokens": len(held) * TOKENS,
        "batch": {"size": len(held), "step_ms": 20.4 * world.slow},
        "requests": [
            {"id": one.id, "tenant": one.tenant, "of_deadline": round((world.now_s - one.arrived_s) / DEADLINE_S, 3)}
            for one in held
        ],
    }  # fmt: skip


def life(world: World, asked: Asked) -> dict[str, Any]:
    waited_s = None if asked.started_s is None else asked.started_s - asked.arrived_s
    total_s = None if asked.ended_s is None else asked.ended_s - asked.arrived_s
    state = "ended" if asked.outcome else "waiting" if asked.started_s is None else "running"
    return {
        "id": asked.id, "tenant": asked.tenant, "model": "weir-sim", "class": "default",
        "deadline_ms": DEADLINE_S * 1000, "level": asked.level, "state": state, "outcome": asked.outcome,
        "message": "", "degraded": [],
        "timeline": timeline(asked),
        "numbers": {
            "prompt_tokens": 60, "context_tokens": 0, "max_tokens": 128, "granted_tokens": 128,
            "completion_tokens": 120 if asked.outcome == "served" else None, "charge_tokens": TOKENS,
            "predicted_wait_ms": asked.predicted_s * 1000, "predicted_wait_q95_ms": asked.predicted_s * 1400,
            "waited_ms": None if waited_s is None else waited_s * 1000,
            "total_ms": None if total_s is None else total_s * 1000,
            "first_token_ms": None, "retrieval_source": None, "retrieval_ms": None, "worker": asked.worker,
            "first_worker": None, "attempts": 1, "queue_depth": asked.waiting, "hint_ms": None, "margin": MARGIN,
        },
    }  # fmt: skip


def timeline(asked: Asked) -> list[dict[str, Any]]:
    events = [{"at_ms": 0.0, "what": "arrived", "detail": f"{asked.waiting} were waiting"}]
    if asked.started_s is None and asked.ended_s == asked.arrived_s:
        return [*events, {"at_ms": 0.0, "what": asked.outcome, "detail": "would have been ready after its deadline"}]
    told = f"a place in line; a wait of {asked.predicted_s * 1000:.0f} ms was predicted"
    events.append({"at_ms": 0.0, "what": "admit", "detail": told})
    if asked.started_s is not None:
        waited_ms = (asked.started_s - asked.arrived_s) * 1000
        events.append({"at_ms": waited_ms, "what": "started", "detail": f"on {asked.worker}"})
    if asked.ended_s is not None:
        events.append({"at_ms": (asked.ended_s - asked.arrived_s) * 1000, "what": asked.outcome or "", "detail": ""})
    return events
