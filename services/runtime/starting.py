"""Errors that keep a service from starting. Each has a message for the operator and an exit status for scripts."""

from __future__ import annotations

EXIT_PORT_TAKEN = 3
EXIT_CANNOT_START = 4


class CannotStart(Exception):
    """A fault that the operator can fix; the message says what is wrong and what to do."""

    exit_status = EXIT_CANNOT_START


class PortTaken(CannotStart):
    """An address cannot be listened on; the message says which, why, and what to do."""

    exit_status = EXIT_PORT_TAKEN
