"""A policy that goes on as it was, while every decision that it makes is written down as one line of text."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from loadtests.simulator.job import Job
from loadtests.simulator.policy import Policy, Refusal
from services.core.admissioncheck import Rejection
from services.core.outcome import Outcome

MARK_EVERY = 8
MARK_DIGITS = 4
"""After so many decisions the first digits of the digest of all decisions so far are kept."""


class Recorded:
    """Stands before a policy. `lines` holds the first decisions in clear, `marks` what the digest came to on the way.

    A line is: the time in seconds, the number of the request, and the decision. Numbers have six digits: more of them
    would tell one C library from another, and nothing about a decision.
    """

    def __init__(self, policy: Policy, clear: int) -> None:
        self._policy = policy
        self._clear = clear
        self._digest = hashlib.sha256()
        self.lines: list[str] = []
        self.marks: list[str] = []
        self.decisions = self.offers = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._policy, name)

    @property
    def digest(self) -> str:
        """Of all decisions so far."""
        return self._digest.hexdigest()[:16]

    def offer(self, now: float, job: Job) -> Refusal | None:
        refusal = self._policy.offer(now, job)
        self.offers += 1
        who = f"{job.tenant} offers {job.prompt_tokens}+{job.context_tokens}>{job.max_tokens}"
        if refusal is None:
            predicted = " ".join(map(number, self._policy.predicted(job)))
            self._write(now, job, f"{who}: admit level={job.level} waits={predicted or '?'}")
        else:
            self._write(now, job, f"{who}: {_refusal(refusal)}")
        return refusal

    def next(self, now: float) -> tuple[Job | None, Sequence[Job]]:
        job, dropped = self._policy.next(now)
        self._dropped(now, dropped)
        if job is not None:
            self._write(now, job, f"start level={job.level} answer<={job.granted_tokens}")
        return job, dropped

    def expire(self, now: float) -> Sequence[Job]:
        dropped = self._policy.expire(now)
        self._dropped(now, dropped)
        return dropped

    def leave(self, now: float, job: Job) -> None:
        self._write(now, job, "leave")
        self._policy.leave(now, job)

    def finish(self, now: float, job: Job, outcome: Outcome, prompt_tokens: int, completion_tokens: int) -> None:
        late = " late" if now > job.deadline else ""
        self._write(now, job, f"end {outcome}{late} {prompt_tokens}+{completion_tokens}")
        self._policy.finish(now, job, outcome, prompt_tokens, completion_tokens)

    def capacity(self, now: float, slots: int) -> None:
        self._tell(f"{number(now)} slots={slots}")
        self._policy.capacity(now, slots)

    def _dropped(self, now: float, jobs: Sequence[Job]) -> None:
        for job in jobs:
            self._write(now, job, f"drop {job.expires_for}")

    def _write(self, now: float, job: Job, decision: str) -> None:
        self._tell(f"{number(now)} #{job.id} {decision}")

    def _tell(self, line: str) -> None:
        self.decisions += 1
        self._digest.update(line.encode() + b"\n")
        if len(self.lines) < self._clear:
            self.lines.append(line)
        if self.decisions % MARK_EVERY == 0:
            self.marks.append(self._digest.hexdigest()[:MARK_DIGITS])


def _refusal(refusal: Refusal) -> str:
    hint = "never" if refusal.retry_hint_s is None else number(refusal.retry_hint_s)
    if not isinstance(refusal, Rejection):
        return f"refuse {refusal.outcome} hint={hint}"
    wait = number(refusal.predicted_wait_s)
    return f"refuse {refusal.outcome} {refusal.reason} scope={refusal.scope} wait={wait} hint={hint}"


def number(value: float) -> str:
    """Six digits, and no zero with a sign."""
    return format(value + 0.0, ".6g")
