"""The router on one core, before a stub on the other: throughput, rejections, streamed chunks, added latency."""

from __future__ import annotations

from loadtests.bench.bare import bare
from loadtests.bench.stand import CONNECTIONS, FULL, HELD, HOLD_S, all_different, chat, router_before
from loadtests.bench.stub import stub
from loadtests.cluster.usage import cores, pinned, rss_mb
from loadtests.load.closed import closed_loop, hold
from loadtests.load.figures import Quantiles, quantiles
from loadtests.load.rates import Same, at_rates
from loadtests.report.figure import Figure, at_least, at_most

RATE = 200.0


async def measure(seconds: float) -> list[Figure]:
    with pinned(cores()[1]):
        async with stub() as stub_port:
            async with router_before(stub_port, {"MAX_INFLIGHT": "64"}) as made:
                idle_mb = rss_mb(made.pid)
                figures = await _answers(made.port, stub_port, seconds)
                figures.append(at_most("idle memory", idle_mb, 80, "MB"))
            async with router_before(stub_port, FULL) as made:
                figures += await _refusals(made.port, seconds)
        async with bare("asgi") as (port, _):
            empty = await closed_loop(port, chat(port), CONNECTIONS, seconds)
    return [*figures, Figure("for scale: an empty ASGI app under uvicorn", empty.per_second, "requests/s")]


async def _answers(port: int, stub_port: int, seconds: float) -> list[Figure]:
    ceiling = await closed_loop(stub_port, chat(stub_port), CONNECTIONS, seconds / 2)
    busy = await closed_loop(port, chat(port), CONNECTIONS, seconds)
    streams = await closed_loop(port, chat(port, stream=True), CONNECTIONS, seconds)
    busy.only(200)
    streams.only(200)
    alone, through = await latency(stub_port, seconds * 2), await latency(port, seconds * 2)
    note = f"p50 {busy.quantile_ms(0.5):.1f} ms, p99 {busy.quantile_ms(0.99):.1f} ms; "
    note += f"client and stub alone {ceiling.per_second:,.0f}/s"
    spread = f"{CONNECTIONS} streams; {streams.events / max(1, streams.reads):.2f} chunks per read"
    return [
        at_least("chat completions", busy.per_second, 8000, "requests/s", note),
        at_least("streamed chunks", streams.events / streams.wall_s, 15_000, "chunks/s", spread),
        _added("p50", through.p50, alone.p50, 1.5),
        _added("p99", through.p99, alone.p99, 6),
    ]


async def latency(port: int, seconds: float) -> Quantiles:
    """Of chat completions at RATE. Raises RuntimeError unless all are answered."""
    ledger = await at_rates(port, {"bench": RATE}, Same(chat(port)), seconds)
    if failed := [row.ending for row in ledger.rows if not row.ending.startswith("served")]:
        raise RuntimeError(f"expected answers only, got {failed[:5]}")
    return quantiles(row.latency_s for row in ledger.rows)


def _added(which: str, through_ms: float, alone_ms: float, target_ms: float) -> Figure:
    note = f"{through_ms:.2f} ms against {alone_ms:.2f} ms"
    return at_most(f"added latency {which}, at {RATE:g} requests/s", through_ms - alone_ms, target_ms, "ms", note)


async def _refusals(port: int, seconds: float) -> list[Figure]:
    held = await hold(port, [chat(port, "hang")] * HELD, HOLD_S)
    refused = await closed_loop(port, all_different(port), CONNECTIONS, seconds)
    early = await closed_loop(port, chat(port), CONNECTIONS, seconds)
    refused.only(429)
    early.only(429)
    for holder in held:
        holder.transport.close()
    p50_ms, p99_ms = (refused.quantile_ms(q) for q in (0.5, 0.99))
    return [
        at_least("refusals", refused.per_second, 12_000, "requests/s"),
        at_most("refusal p99", p99_ms, 10, "ms", f"p50 {p50_ms:.1f} ms"),
        Figure(
            "refusals of early retries", early.per_second, "requests/s", note="the same request again, before its hint"
        ),
    ]
