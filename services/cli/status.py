"""`weir status`: what runs in this folder, and whether it is ready."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import httpx2
from rich.console import Console
from rich.table import Table
from rich.text import Text

from services.cli import governor
from services.cli.config import LabSettings
from services.cli.lease import StackNote, running_pid, running_stack

EXIT_NOT_RUNNING = 3  # as init scripts do
ANSWER_WITHIN_S = 2.0


def status(settings: LabSettings, console: Console) -> int:
    """Print it. Returns 0 if all is ready, 1 if something is not, 3 if nothing runs."""
    pid, stack = running_pid(settings.folder), running_stack(settings.folder)
    if pid is None:
        console.print(Text(f"Nothing runs in {settings.folder}. `weir up` starts the stack."))
        return EXIT_NOT_RUNNING
    if stack is None:
        console.print(Text(f"The stack (pid {pid}) is starting."))
        return 1
    parts = services(stack)
    with ThreadPoolExecutor(len(parts)) as pool:
        states = list(pool.map(readiness, parts.values()))
    grid = Table.grid(padding=(0, 2, 0, 0))
    for (name, url), state in zip(parts.items(), states, strict=True):
        mark = Text("✓", style="green") if state == "ready" else Text("✗", style="red")
        grid.add_row(" ", mark, name, Text(url, style="cyan"), Text(state, style="dim"))
    console.print(Text(f"weir runs in {settings.folder} (pid {pid})"), grid, sep="\n")
    return 0 if all(state == "ready" for state in states) else 1


def services(stack: StackNote) -> dict[str, str]:
    """Name and address of each service: a URL, or HOST:PORT for the governor."""
    workers = {f"worker-{index}": url for index, url in enumerate(stack.worker_urls)}
    storm = {"storm": stack.storm_url} if stack.storm_url else {}
    front = {"router": stack.router_url, "retrieval": stack.retrieval_url, "governor": stack.governor_address}
    return {**front, **storm, **workers}


def readiness(url: str) -> str:
    """`ready`, or why not."""
    if "://" not in url:
        return "ready" if governor.answers(url, ANSWER_WITHIN_S) else "does not answer"
    try:
        reply = httpx2.get(f"{url}/health/ready", timeout=ANSWER_WITHIN_S, trust_env=False)
    except httpx2.HTTPError:
        return "does not answer"
    return "ready" if reply.status_code == 200 else f"not ready: {reply.text[:200]}"
