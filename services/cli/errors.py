"""What the lab says when it cannot go on: one sentence for a person, never a traceback."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text


class LabError(Exception):
    """What was wrong, where, and what to do; `notes` are lines shown below it, such as the end of a log."""

    def __init__(self, message: str, *, notes: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.notes = notes


class OutputClosed(LabError):
    """Whoever read our output has gone, as `head` does: nothing more can be said, and that is no fault."""

    def __init__(self) -> None:
        super().__init__("nobody reads the output any more")


def complain(console: Console, error: LabError) -> None:
    console.print(Text.assemble(("✗ ", "bold red"), (error.message, "bold")), soft_wrap=True)
    for note in error.notes:
        console.print(Text(f"    {note}", style="dim"), soft_wrap=True)
