"""What `weir up` prints once the stack runs: the addresses, and three commands to try."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from services.cli.config import METRICS_OFFSET, LabSettings

QUESTION = "When does Weir refuse a request?"


def welcome(settings: LabSettings, ready_s: float) -> RenderableType:
    """Without a box, so that commands can be copied whole. The corpus may still be loading."""
    took = f"ready in {ready_s:.1f} s"
    title = Text.assemble(("── weir is up ", "bold green"), (f"· {took} ", "dim"), ("─" * (62 - len(took)), "green"))
    return Group(title, "", addresses(settings), "", commands(settings), "")


def addresses(settings: LabSettings) -> RenderableType:
    url = settings.router_url
    metrics = f"http://{settings.reach}:{settings.router_port + METRICS_OFFSET}/metrics"
    return _lines(
        (
            "console",
            f"{url}/console",
            "watch requests live, and start a storm; with TENANTS_FILE it is on the metrics listener",
        ),
        ("router", f"{url}", "POST /ask"),
        ("openai", f"{url}/v1", "base_url of any OpenAI client; without TENANTS_FILE any key works"),
        ("API", f"{url}/docs", "every route"),
        ("governor", settings.governor_address, "a concurrency limit over TCP: weir governor send FILE"),
        ("metrics", metrics, f"Prometheus text, for {_allowed(settings)}"),
        ("logs", str(_short(settings.folder / "logs")), "one file per part"),
    )


def commands(settings: LabSettings) -> RenderableType:
    moved = f"ROUTER_PORT={settings.router_port} " if settings.router_port != 8000 else ""
    body = """-H 'content-type: application/json' -d '{"query": "What is a weir?"}'"""
    lines = (
        f'{moved}{weir()} ask "{QUESTION}"',
        f"curl {settings.router_url}/ask {body}",
        f"{moved}make load",
    )
    return Group(Text("  try", style="bold"), *(Text(f"    {line}", overflow="fold") for line in lines))


def weir() -> str:
    """How to call this program from the current shell."""
    if shutil.which("weir"):
        return "weir"
    return str(_short(Path(sys.executable).parent / "weir"))


def _lines(*rows: tuple[str, str, str]) -> RenderableType:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(width=9, justify="right", style="dim")
    grid.add_column(no_wrap=True, style="cyan")
    grid.add_column(style="dim", no_wrap=True)
    for row in rows:
        grid.add_row(*row)
    return grid


def _allowed(settings: LabSettings) -> str:
    return f"the token in {_short(settings.token_file)}" if settings.shared_token else "this machine"


def _short(path: Path) -> Path:
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path
