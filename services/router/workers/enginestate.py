"""What an engine's own report means for the worker: memory, strain, crowding (decision 076).

Reports lag, so the ledger stays the measure of what a worker holds, and a report only sets bounds:

- Memory: the size of the KV cache, less what is used there and is not in the ledger. That is other users' requests, and
  prompts that were estimated too short. It counts if two reports in a row show it, since a report may be older than the
  end of a request. A block for each slot and one more is taken off too: a request holds whole blocks, and vLLM keeps
  one. In all never above LOST_SHARE, since a report that is wrong must not stop a worker.
- Strain: the engine has a queue of its own, nearly no memory left, or has taken requests out of its batch since the
  report before. Then nothing is sent ahead.
"""

from __future__ import annotations

from services.router.upstreams.enginepage import EngineReport

STRAINED_KV_SHARE = 0.9
LOST_SHARE = 0.75


class ReportedState:
    """The last report of one worker's engine. Pure."""

    __slots__ = ("_unaccounted_tokens", "kv_tokens", "report", "slots", "strained")

    def __init__(self) -> None:
        self.report: EngineReport | None = None
        self.kv_tokens: int | None = None
        """KV tokens that the worker's requests may need in all; None: not known."""
        self.slots = 0
        """The most requests in its batch, as it last said; 0: never."""
        self.strained = False
        self._unaccounted_tokens = 0

    def learn(self, report: EngineReport | None, held_tokens: int, inflight: int, slots: int) -> None:
        """Take over a report. By the ledger the worker holds `held_tokens` in `inflight` requests."""
        before, self.report = self.report, report
        if report is None:
            self.kv_tokens, self.strained, self._unaccounted_tokens = None, False, 0
            return
        self.slots = report.slots or self.slots
        self.kv_tokens = self._memory(report, held_tokens, slots)
        sent_ahead = max(0, inflight - slots)
        queues, full = report.waiting > sent_ahead, (report.kv_share or 0.0) >= STRAINED_KV_SHARE
        self.strained = queues or full or _preempted(before, report)

    def _memory(self, report: EngineReport, held_tokens: int, slots: int) -> int | None:
        size = report.kv_tokens
        if size is None:
            return None
        unaccounted = max(0, int(size * (report.kv_share or 0.0)) - held_tokens)
        lasting, self._unaccounted_tokens = min(unaccounted, self._unaccounted_tokens), unaccounted
        lost = lasting + (slots + 1) * report.block_tokens
        return max(1, size - min(lost, int(size * LOST_SHARE)))


def _preempted(before: EngineReport | None, now: EngineReport) -> bool:
    """Whether the count rose; it begins anew with the engine."""
    if before is None or before.preemptions is None or now.preemptions is None:
        return False
    return now.preemptions > before.preemptions
