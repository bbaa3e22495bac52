"""The ladders that are compared, and the router with one of them: `python -m loadtests.bench.degradation.ladders NAME`.

A router has its ladder built in. In production a tenant is kept off it with `degrade: false` in the tenants file, which
also keeps its answers from being cut to fit. Here all else is to be equal, so the ladder itself is exchanged.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from random import Random
from unittest.mock import patch

from services.core.ladder import LADDER, Level
from services.core.weir import Weir
from services.router import __main__ as router
from services.router import app
from services.router.config import RouterSettings
from services.router.tenancy.tenants import Tenants

OFF, RETRIEVAL, WHOLE = "off", "retrieval only", "whole"


def _retrieval_only(level: Level) -> Level:
    """The same cuts of passages, search and context; the answer stays as long as it was asked for."""
    return replace(level, max_tokens_share=1.0)


LADDERS: dict[str, tuple[Level, ...]] = {
    OFF: LADDER[:1],
    RETRIEVAL: tuple(map(_retrieval_only, LADDER)),
    WHOLE: LADDER,
}


def main() -> int:
    """The router as it is, on another ladder; the exit status."""
    ladder, as_it_is = LADDERS[sys.argv[1]], app.scheduler

    def scheduler(settings: RouterSettings, tenants: Tenants, rng: Random) -> Weir:
        return Weir(replace(as_it_is(settings, tenants, rng).settings, ladder=ladder), rng.random)

    with patch.object(app, "scheduler", scheduler):
        return router.main()


if __name__ == "__main__":
    raise SystemExit(main())
