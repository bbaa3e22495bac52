"""Why a service did not start, for its user to mend: a sentence on stderr, and an exit status that scripts can tell."""

from __future__ import annotations

EXIT_PORT_TAKEN = 3
EXIT_CANNOT_START = 4


class CannotStart(Exception):
    """What `start` raises for a fault that its user can mend: the message says what was wrong and what to do."""

    exit_status = EXIT_CANNOT_START


class PortTaken(CannotStart):
    """An address cannot be listened on; the message says which, why, and what to do."""

    exit_status = EXIT_PORT_TAKEN
