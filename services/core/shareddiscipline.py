"""Deficit round robin over a pool that several routers share: docs/architecture/mechanisms/several-routers.md.

The order is that of `DrrDiscipline`, whose rings are also charged for what other routers serve. Only one question has
another answer: whether a tenant is below its share. Its router sees a part of what it asks for, and has a part of the
slots, so both are compared for the whole pool (`elsewhere.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from services.core.discipline import DrrDiscipline
from services.core.outcome import Outcome

if TYPE_CHECKING:
    from services.core.admissioncheck import AdmissionCheck


class SharedDrrDiscipline(DrrDiscipline):
    """Deficit round robin over classes and tenants, at one of several routers."""

    __slots__ = ()

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
