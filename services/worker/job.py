"""One request inside the worker, from submission to its end."""

from __future__ import annotations

from dataclasses import dataclass

from services.contracts.generate import Done, Timings, Usage
from services.worker.engine import FinishReason, Sequence
from services.worker.lending import Loan
from services.worker.stops import StopFilter
from services.worker.stream import AnswerStream
from services.worker.ticket import Ticket


@dataclass(eq=False, slots=True)
class Job:
    """The state of a request. Times are seconds on the loop's clock; None until the event has happened."""

    sequence: Sequence
    ticket: Ticket
    stream: AnswerStream
    stops: StopFilter
    deadline: float
    loan: Loan
    started_at: float | None = None
    first_token_at: float | None = None
    batch_size: int = 0

    @property
    def id(self) -> str:
        return self.ticket.id

    @property
    def arrived_at(self) -> float:
        return self.ticket.started_at

    def held_s(self, now: float) -> float:
        """How long it has held a slot, in seconds."""
        return 0.0 if self.started_at is None else now - self.started_at

    def done(self, reason: FinishReason, now: float) -> Done:
        """The last event of an answer that is complete at `now`."""
        usage = Usage(self.sequence.prompt_tokens, self.sequence.completion_tokens)
        timings = Timings(
            queue_ms=self._ms_until(self.started_at, now),
            first_token_ms=self._ms_until(self.first_token_at, now),
            total_ms=self._ms_until(now, now),
        )
        return Done(finish_reason=reason, usage=usage, timings=timings, batch_size=self.batch_size)

    def _ms_until(self, moment: float | None, now: float) -> float:
        return round(((now if moment is None else moment) - self.arrived_at) * 1000, 3)
