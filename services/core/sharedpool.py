"""Deficit round robin over a pool that several routers share: docs/architecture/mechanisms/several-routers.md.

The order is that of `DrrDiscipline`, whose rings are also charged for what other routers serve. What a router cannot
see alone has another answer here: whether a tenant is below its share, which is judged for the whole pool
(`elsewhere.py`), and the share of this router's slots that a tenant gets which other routers serve too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from services.core.discipline import DrrDiscipline, WaitPrediction
from services.core.outcome import Outcome
from services.core.pool import Flow, PoolQueue

if TYPE_CHECKING:
    from services.core.admissioncheck import AdmissionCheck
    from services.core.estimator import Estimator


class SharedPoolQueue(PoolQueue):
    """A pool at one of several routers."""

    __slots__ = ()

    def share(self, flow: Flow) -> float:
        """As with one router, and for a tenant above its share of the whole pool at most what it gets here."""
        share = super().share(flow)
        return share if self.elsewhere is None else min(share, self.elsewhere.share_of(flow))


class SharedDrrDiscipline(DrrDiscipline):
    """Deficit round robin over classes and tenants, at one of several routers."""

    __slots__ = ()

    def predict_wait(
        self, now: float, flow: Flow, due_at: float, estimator: Estimator, *, measured_rounds: bool = True
    ) -> WaitPrediction:
        """As with one router; for a tenant above its share of the pool, at least the time that its own work takes here.

        Its turns come later than this router's rings show, since other routers serve it too.
        """
        found = super().predict_wait(now, flow, due_at, estimator, measured_rounds=measured_rounds)
        elsewhere, rate = self._pool.elsewhere, estimator.rate
        if found.idle or elsewhere is None or not rate:
            return found
        share = elsewhere.share(now, flow, self._pool, estimator)
        if not share:
            return found
        own_work = flow.work_before(due_at) if flow.requests else 0.0
        own_s = (own_work - min(0.0, flow.node.flows.deficit_at(now, flow))) / (rate * share)
        return found._replace(share=min(found.share, share), wait_s=max(found.wait_s, own_s))

    def share_refusal(self, check: AdmissionCheck) -> tuple[Outcome, str] | None:
        """As with one router, by the load on the whole pool.

        The load is put into this router's units, so that `asked_per_s <= rate * share` is true where it is at most 1.
        """
        pool, estimator = self._pool, check.pool_stats.estimator
        if pool.elsewhere is not None:
            load = pool.elsewhere.load(check.now, check.flow, pool, estimator, check.asked_per_s)
            if load is not None:
                check.asked_per_s = load * (estimator.rate or 0.0) * check.share
        return super().share_refusal(check)
