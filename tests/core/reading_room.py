"""A house whose workers read: one prompt after another, as they came. Slots are many, and what is scarce is reading."""

from __future__ import annotations

from typing import Any

from services.core.estimator import Estimator
from services.core.outcome import Outcome
from services.core.request import Request
from tests.core.house import TOKEN_S, House

READ_S = 4e-4
"""Seconds per prompt token, of one reader."""
PROMPT, ANSWER = 1000, 24
READ_ONE_S = PROMPT * READ_S
SERVICE_S = READ_ONE_S + ANSWER * TOKEN_S


class ReadingRoom(House):
    """Two readers behind many slots. `told` says whether a first token is known when it comes, or only at the end."""

    def __init__(
        self, *, slots: int = 16, readers: int = 2, announces: bool = False, told: bool = True, **kept: Any
    ) -> None:
        super().__init__(slots, knows_itself=False, **kept)
        self._free_at = [0.0] * readers
        self._told = told
        known = Estimator(
            work_per_slot_s=2.0 / TOKEN_S, prefill_s_per_token=READ_S, s_per_token=TOKEN_S,
            readers=readers if announces else 0,
        )  # fmt: skip
        self.scheduler.announce("default", known)

    @property
    def per_s(self) -> float:
        """How many of the usual requests can be read in a second."""
        return len(self._free_at) / READ_ONE_S

    def ask(self, tenant: str = "a", *, slack_s: float = 2.0, **fields: Any) -> Any:
        """Offer one of the usual size."""
        sizes = {"prompt_tokens": PROMPT, "max_tokens": ANSWER} | fields
        return self.offer(tenant, slack_s=slack_s, answer=ANSWER, **sizes)

    def _run(self, request: Request) -> None:
        self.free -= 1
        self.waits_s[request] = self.now - request.queued_at
        reader = min(range(len(self._free_at)), key=self._free_at.__getitem__)
        begins = max(self.now, self._free_at[reader])
        prompt = request.prompt_tokens + request.context_tokens
        read_at = begins + prompt * READ_S
        if read_at <= request.deadline:
            self._free_at[reader] = read_at
        elif begins < request.deadline:
            self._free_at[reader] = request.deadline  # cut while it is read
        done_at = read_at + min(self.answers[request], request.granted_tokens) * TOKEN_S
        if self._told and read_at <= request.deadline:
            self.at(read_at, lambda: self.scheduler.first_token(self.now, request))
        self.at(min(done_at, request.deadline), lambda: self._over(request, read_at, done_at))

    def _over(self, request: Request, read_at: float, done_at: float) -> None:
        served = done_at <= request.deadline
        written = max(0, round((self.now - read_at) / TOKEN_S))
        if served and not self._told:
            self.scheduler.first_token(read_at, request)
        outcome = Outcome.SERVED if served else Outcome.DEADLINE_EXCEEDED
        self.scheduler.finish(self.now, request, outcome, request.prompt_tokens, written)
        self.free += 1
        self.fates[request] = outcome
        self.start()

    def asked_for(self, seconds: float, load: float, tenant: str = "a", **fields: Any) -> None:
        """So many times what can be read, from now on, for so long."""
        self.every(1.0 / (load * self.per_s), self.now + seconds, lambda: self.ask(tenant, **fields))

    def on_time_of_capacity(self, seconds: float) -> float:
        """What was served in time, of what could have been read."""
        return self.count(Outcome.SERVED) / (seconds * self.per_s)
