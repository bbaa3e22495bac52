"""The console of every command: colours on a terminal, whole plain lines elsewhere, quiet when nobody reads."""

from __future__ import annotations

import os
from collections.abc import Callable

from rich.console import Console

from services.cli.errors import LabError, OutputClosed, complain

NO_TERMINAL_WIDTH = 160


class LabConsole(Console):
    """rich's console, which leaves with SystemExit when its pipe breaks: here that is an error like any other, so
    that whoever holds processes can stop them first."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.file.fileno())  # what is still buffered goes there at exit, without a complaint
        os.close(nowhere)
        raise OutputClosed


def open_console(*, stderr: bool = False) -> Console:
    console = LabConsole(stderr=stderr, highlight=False)
    if not console.is_terminal:
        console.width = NO_TERMINAL_WIDTH  # nobody's window: do not fold or cut for one
    return console


def run_command(command: Callable[[], object]) -> None:
    """Run what a command line asks for. A LabError is a sentence and status 1, not a traceback; Ctrl-C is 130."""
    try:
        command()
    except OutputClosed:
        raise SystemExit(1) from None
    except LabError as error:
        complain(open_console(stderr=True), error)
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
