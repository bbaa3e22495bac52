"""Invented runs for the judges: one router, one worker, requests and jobs where a test puts them."""

from __future__ import annotations

from collections.abc import Sequence

from loadtests.judging.answers import Verdict
from loadtests.judging.rules import Logged
from loadtests.runs.integrity.logs import RouterLog
from loadtests.runs.many.deck import Fault, What
from loadtests.runs.many.record import Entry, Job, Observed, Phase, Span, Stretch, WorkerLog

ROUTER, WORKER = "router-0", "worker-0"
CALM = Stretch(Phase.CALM, 100.0, 120.0)
STORE_FROZEN = Stretch(Phase.STORE_FROZEN, 200.0, 260.0)


def entry(verdict: Verdict = Verdict.RIGHT, sent_s: float = 10.0, ended_s: float = 10.6, **more: object) -> Entry:
    status = more.pop("status", {Verdict.RIGHT: 200, Verdict.REFUSED: 429}.get(verdict, 0))
    code = more.pop("code", "yield" if verdict is Verdict.REFUSED else "")
    id, tenant, router = more.pop("id", "a"), more.pop("tenant", "gold"), more.pop("router", ROUTER)
    return Entry(id, tenant, router, sent_s, ended_s, verdict, status, code, **more)


def observed(*entries: Entry, spans: Sequence[Span] = (), jobs: Sequence[Job] = (), **more: object) -> Observed:
    worker = WorkerLog(WORKER, list(jobs), received=list(more.pop("received", ())))
    slots = more.pop("slots", 2)
    return Observed(slots, entries, [worker], spans=spans, stretches=(CALM, STORE_FROZEN), **more)


def logged(*outcomes: str, worker: str = "") -> RouterLog:
    return RouterLog({"a": [Logged(1, 200, outcome, worker) for outcome in outcomes]})


def killed(from_s: float, to_s: float, router: str = ROUTER) -> Span:
    return Span(Fault(What.ROUTER_KILLED, router), from_s, to_s)


def cut(from_s: float, to_s: float, worker: str = WORKER) -> Span:
    return Span(Fault(What.LINK_CUT, ROUTER, worker), from_s, to_s)


def unplugged(from_s: float, to_s: float, router: str = ROUTER) -> Span:
    return Span(Fault(What.ROUTER_UNPLUGGED, router), from_s, to_s)
