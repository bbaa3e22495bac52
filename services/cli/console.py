"""The console of every command: colours on a terminal, plain unfolded lines elsewhere."""

from __future__ import annotations

import os
from collections.abc import Callable

from rich.console import Console

from services.cli.errors import LabError, OutputClosed, complain

NO_TERMINAL_WIDTH = 160


class LabConsole(Console):
    """rich's console; a broken pipe raises OutputClosed, so that child processes can be stopped first."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.file.fileno())  # buffered output goes there at exit, without an error
        os.close(nowhere)
        raise OutputClosed


def open_console(*, stderr: bool = False) -> Console:
    console = LabConsole(stderr=stderr, highlight=False)
    if not console.is_terminal:
        console.width = NO_TERMINAL_WIDTH  # without a terminal, do not fold or cut lines
    return console


def run_command(command: Callable[[], object]) -> None:
    """Run a command. A LabError is printed as a sentence and exits with 1, Ctrl-C exits with 130."""
    try:
        command()
    except OutputClosed:
        raise SystemExit(1) from None
    except LabError as error:
        complain(open_console(stderr=True), error)
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
