"""The lab's error: one sentence for a person, never a traceback."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text


class LabError(Exception):
    """What is wrong, where, and what to do; `notes` are lines shown below, such as the end of a log."""

    def __init__(self, message: str, *, notes: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.notes = notes


class OutputClosed(LabError):
    """The reader of the output has closed it, as `head` does. This is not a fault."""

    def __init__(self) -> None:
        super().__init__("the output was closed by its reader")


def complain(console: Console, error: LabError) -> None:
    console.print(Text.assemble(("✗ ", "bold red"), (error.message, "bold")), soft_wrap=True)
    for note in error.notes:
        console.print(Text(f"    {note}", style="dim"), soft_wrap=True)
