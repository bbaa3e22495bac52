"""`python -m services.router.several`: what several routers need and what is found of it, for `weir doctor`.

It reads settings and files as the router would, asks the store at EXCHANGE_URL and the workers, and changes nothing.
Exit status 0.
"""

from __future__ import annotations

import asyncio
import io
import sys
from collections.abc import Callable

import msgspec
from pydantic import ValidationError

from services.contracts.finding import ProductionFinding
from services.router.config import RouterSettings
from services.router.operating.sharedpool import look, verdicts
from services.runtime.log import Log
from services.runtime.settings import describe


async def findings_of(settings: RouterSettings) -> list[ProductionFinding]:
    """Nothing of a router that is alone."""
    if not settings.several_routers:
        return []
    log = Log("router", "ERROR", io.BytesIO(), threaded=False)  # standard output is the findings'
    return verdicts(settings, await look(settings, log))


def examine(read: Callable[..., RouterSettings]) -> list[ProductionFinding]:
    """The findings; settings that cannot be used are the only one, since the router does not start with them."""
    try:
        settings = read()
    except ValidationError as faults:
        why, remedy = "the router does not start with them", "correct them, then ask again"
        return [ProductionFinding("settings", "fail", describe(faults).strip(), why, remedy)]
    return asyncio.run(findings_of(settings))


def main() -> int:
    sys.stdout.buffer.write(msgspec.json.encode(examine(RouterSettings)) + b"\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
