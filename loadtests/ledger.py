"""One line per request would be honest but endless: counts and rounded times per outcome, in bounded memory."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator


class Ledger:
    """How requests ended, by surface (`/ask`, `chat`, ...) and outcome. Times are kept to two significant digits."""

    def __init__(self) -> None:
        self._times_ms: defaultdict[tuple[str, str], Counter[int]] = defaultdict(Counter)

    def record(self, surface: str, outcome: str, took_ms: float) -> None:
        """A request ended so, after so long."""
        self._times_ms[surface, outcome][_two_digits(took_ms)] += 1

    @property
    def total(self) -> int:
        return sum(times.total() for times in self._times_ms.values())

    def table(self) -> str:
        """The summary, as lines of text."""
        if not self.total:
            return "No request was made."
        head = f"{'surface':<14} {'outcome':<44} {'count':>8} {'share':>7} {'p50 ms':>8} {'p95 ms':>8} {'max ms':>8}"
        return "\n".join([head, "-" * len(head), *self._rows()])

    def _rows(self) -> Iterator[str]:
        for (surface, outcome), times in sorted(self._times_ms.items()):
            count = times.total()
            figures = " ".join(f"{percentile(times, q):>8}" for q in (0.50, 0.95, 1.0))
            yield f"{surface:<14} {outcome[:44]:<44} {count:>8} {count / self.total:>7.1%} {figures}"


def percentile(times: Counter[int], q: float) -> int:
    """The least time that a share `q` of the requests did not exceed."""
    needed = q * times.total()
    seen = 0
    for time_ms in sorted(times):
        seen += times[time_ms]
        if seen >= needed:
            return time_ms
    return 0


def _two_digits(time_ms: float) -> int:
    whole = round(time_ms)
    return round(whole, 2 - len(str(whole))) if whole >= 100 else whole
