"""A house with clients before it: they give up at their deadline or before, and the switches say what becomes of it."""

from __future__ import annotations

from typing import Any

from services.core.account import QueueBounds
from services.core.admissioncheck import Admitted, Rejection
from services.core.outcome import Outcome
from services.core.policies import Policies
from services.core.request import Request, Stage
from tests.core.house import PREFILL_S, TOKEN_S, House, settings

QUEUE = 256


class Street(House):
    """What each client was told, and what the slots were used for."""

    def __init__(self, slots: int = 8, **off: bool) -> None:
        super().__init__(slots, chosen=settings(bounds=QueueBounds(QUEUE), policies=Policies(**off)))
        self.slots = slots
        self.told: dict[Request, Outcome | Rejection] = {}
        self.served_at: list[float] = []
        self.used_s = self.wasted_s = 0.0

    @property
    def policies(self) -> Policies:
        return self.scheduler.settings.policies

    def ask(self, tenant: str = "a", *, leaves_after_s: float | None = None, **fields: Any) -> Admitted | Rejection:
        request = self.request(tenant, **fields)
        said = self.put(request)
        if isinstance(said, Rejection):
            self.told[request] = said
        else:
            self.at(request.deadline, lambda: self.gives_up(request, Outcome.DEADLINE_EXCEEDED))
            if leaves_after_s is not None:
                self.at(self.now + leaves_after_s, lambda: self.gives_up(request, Outcome.CLIENT_GONE))
        return said

    def gives_up(self, request: Request, why: Outcome) -> None:
        if request not in self.told:
            self.told[request] = why
            if self.policies.cancellation:
                self.cancel(request)

    def cancel(self, request: Request) -> None:
        if self.scheduler.leave(self.now, request):
            self.fates[request] = Outcome.CLIENT_GONE
        else:
            self.end(request)

    def switch(self, **on: bool) -> None:
        """From now on; with cancellation back, what is done for nobody ends."""
        self.scheduler.switch(self.now, Policies(**on))
        if self.policies.cancellation:
            for request, told in list(self.told.items()):
                if told is not Outcome.SERVED and request.stage in (Stage.WAITING, Stage.RUNNING):
                    self.cancel(request)
        self.start()

    def _run(self, request: Request) -> None:
        self.free -= 1
        self.waits_s[request] = self.now - request.queued_at
        tokens = min(self.answers[request], request.granted_tokens)
        read_s = request.prompt_tokens * PREFILL_S
        self.at(self.now + read_s, lambda: self.first_token(request))
        self.at(self.now + read_s + tokens * TOKEN_S, lambda: self.end(request))

    def first_token(self, request: Request) -> None:
        if request.stage is Stage.RUNNING:
            self.scheduler.first_token(self.now, request)

    def end(self, request: Request) -> None:
        if request.stage is not Stage.RUNNING:
            return
        spent_s = self.now - request.started_at
        written = max(0, round((spent_s - request.prompt_tokens * PREFILL_S) / TOKEN_S))
        told = self.told.setdefault(request, Outcome.SERVED)
        assert isinstance(told, Outcome)
        self.used_s += spent_s
        if told is Outcome.SERVED:
            self.served_at.append(self.now)
        else:
            self.wasted_s += spent_s
        whole = written >= min(self.answers[request], request.granted_tokens)
        self.scheduler.finish(self.now, request, Outcome.SERVED if whole else told, request.prompt_tokens, written)
        self.fates[request] = told
        self.free += 1
        self.start()

    def _evict(self, requests: list[Request]) -> None:
        super()._evict(requests)
        for request in requests:
            self.told.setdefault(request, Outcome.DEADLINE_EXPIRED)

    # ---- what came of it

    def goodput(self, from_s: float, until_s: float, service_s: float) -> float:
        """Answers in time between these moments, as a share of what the slots can give."""
        served = sum(from_s <= at < until_s for at in self.served_at)
        return served * service_s / (self.slots * (until_s - from_s))

    def share(self, tenant: str, since_s: float = 0.0) -> float:
        """Of its requests since then, those that were answered in time."""
        ends = [told for each, told in self.told.items() if each.tenant == tenant and each.arrived_at >= since_s]
        return sum(told is Outcome.SERVED for told in ends) / len(ends)

    def is_empty(self) -> bool:
        usage = self.scheduler.drr.usage
        return (usage.requests, usage.cost_tokens, self.free, self.estimator.busy) == (0, 0.0, self.slots, 0)
