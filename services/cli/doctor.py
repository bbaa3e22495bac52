"""`weir doctor`: checks everything, changes nothing, and says what to fix.

An image holds one service and neither the packages nor the ports of a whole stack: there only the router is asked, and
what one of several routers needs.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import httpx2
from rich.console import Console
from rich.table import Table
from rich.text import Text

from services.cli import checks, devices, parts, postgres, valkey
from services.cli.checks import USUAL_TOKENS, Finding, FindingLevel, Usual
from services.cli.config import LabSettings
from services.cli.errors import LabError
from services.cli.internal import token_of
from services.cli.lease import running_stack
from services.cli.ports import taken
from services.cli.routerprograms import several_routers

CONSTRAINTS = Path(__file__).parents[2] / "constraints.txt"
STYLES = {
    FindingLevel.OK: "green",
    FindingLevel.SKIP: "dim",
    FindingLevel.WARN: "yellow",
    FindingLevel.FAIL: "bold red",
}


def doctor(settings: LabSettings, console: Console) -> int:
    """Print the table. Returns 1 if anything fails, else 0."""
    return show(asyncio.run(examine(settings)), console)


async def examine(settings: LabSettings) -> list[Finding]:
    shared = await asyncio.to_thread(several_routers, settings)
    if not stack_is_installed():
        return [*await one_service(settings), *shared]
    return [*machine(settings), *await stores(settings), *await services(settings), *shared]


def stack_is_installed() -> bool:
    return all(find_spec(f"services.{name}") is not None for name in ("router", "retrieval", "worker"))


async def one_service(settings: LabSettings) -> list[Finding]:
    seen = "one service is installed here: packages, stores and ports of a whole stack are not checked"
    return [
        checks.python(sys.version_info[:3]),
        Finding("stack", FindingLevel.SKIP, seen),
        *await router(settings, expected=False),
    ]


def machine(settings: LabSettings) -> list[Finding]:
    stack_runs = running_stack(settings.folder) is not None
    installed = {checks.canonical(each.name): each.version for each in importlib.metadata.distributions()}
    embedded = {
        **({} if settings.postgres_url else {"PostgreSQL": ("POSTGRES_URL", postgres.programs() is not None)}),
        **({} if settings.redis_url else {"Valkey": ("REDIS_URL", valkey.program() is not None)}),
    }
    wanted = list(parts.ports(settings))
    return [
        checks.python(sys.version_info[:3]),
        *checks.packages(checks.read_pins(CONSTRAINTS), installed),
        *checks.programs(embedded),
        *engine(settings),
        checks.folder(settings.folder),
        *checks.ports([] if stack_runs else taken(wanted), len(wanted), stack_runs=stack_runs),
    ]


def engine(settings: LabSettings) -> list[Finding]:
    """Only where a model is loaded here: torch takes seconds to list its devices."""
    if not (settings.loads_a_model and settings.own_workers):
        return []
    versions = [f"{name} {version}" for name in devices.NEEDED if (version := devices.installed(name))]
    try:
        devices.names(settings.device)
        found = [] if (missing := devices.missing()) else [str(each) for each in devices.ask()]
    except LabError as error:
        return [Finding("engine", FindingLevel.FAIL, ", ".join(versions), error.message)]
    return checks.engine(missing, versions, found, settings.device)


async def stores(settings: LabSettings) -> list[Finding]:
    stack = running_stack(settings.folder)
    postgres_url = settings.postgres_url or (stack.postgres_url if stack else "")
    redis_url = settings.redis_url or (stack.redis_url if stack else "")
    away = "embedded, and no stack runs here"
    from services.cli.databasecheck import database  # images without retrieval lack asyncpg

    async with httpx2.AsyncClient(timeout=checks.WITHIN_S, trust_env=False) as client:
        model = await checks.embedder(client, settings.retrieval_url)
    return [
        *(await database(postgres_url, model) if postgres_url else [Finding("database", FindingLevel.SKIP, away)]),
        await checks.cache(redis_url) if redis_url else Finding("cache", FindingLevel.SKIP, away),
    ]


async def services(settings: LabSettings) -> list[Finding]:
    expected, token = running_stack(settings.folder) is not None, token_of(settings)
    within_s = settings.admission_safety_margin * settings.default_slo_ms / 1000
    usual = Usual(settings.default_max_tokens or USUAL_TOKENS, within_s)
    async with httpx2.AsyncClient(timeout=10.0, trust_env=False) as client:
        found = await asyncio.gather(
            *(
                checks.worker(client, f"worker-{index}", url, usual, expected=expected, token=token)
                for index, url in enumerate(settings.worker_urls)
            ),
            checks.service(client, "retrieval", settings.retrieval_url, expected=expected),
            asyncio.to_thread(checks.governor, settings.governor_address, expected=expected),
        )
    return [*found, *await router(settings, expected=expected)]


async def router(settings: LabSettings, *, expected: bool) -> list[Finding]:
    """Whether it is ready, and what it answers."""
    async with httpx2.AsyncClient(timeout=10.0, trust_env=False) as client:
        found = await checks.service(client, "router", settings.router_url, expected=expected)
        if found.level not in (FindingLevel.OK, FindingLevel.WARN):
            return [found]
        return [found, await checks.answer(client, settings.router_url, settings.seed_tenant)]


def show(findings: Sequence[Finding], console: Console) -> int:
    """Print the findings. Returns 1 if anything fails, else 0."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(width=6, justify="right")
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for finding in findings:
        seen = Text(finding.seen, style="dim" if finding.level is FindingLevel.SKIP else "")
        if finding.why:
            seen.append(f"\n{finding.why}")
        if finding.remedy and finding.level is not FindingLevel.OK:
            seen.append(f"\n→ {finding.remedy}", style=STYLES[finding.level])
        grid.add_row(Text(finding.level.value, style=STYLES[finding.level]), finding.what, seen)
    failed = sum(finding.level is FindingLevel.FAIL for finding in findings)
    verdict = f"{failed} to fix." if failed else "Nothing to fix."
    console.print("", grid, "", Text(f"  {verdict}", style="bold red" if failed else "green"), sep="\n")
    return 1 if failed else 0
