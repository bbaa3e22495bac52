"""All oracles, in the order in which they are shown."""

from __future__ import annotations

from typing import Protocol

from tests.oracles import decisions, metricnames, steps, views
from tests.oracles.wire import transcripts


class Pinning(Protocol):
    """What an oracle can do."""

    @property
    def name(self) -> str: ...

    @property
    def rewrite(self) -> str:
        """The command that accepts its differences."""
        ...

    def differences(self) -> list[str]:
        """One readable difference for each file that is not as it is pinned."""
        ...

    def write(self) -> list[str]:
        """Pin what is made now, and name the files that have changed. Raises ValueError for what may not be pinned."""
        ...


ORACLES: tuple[Pinning, ...] = (metricnames.ORACLE, transcripts.ORACLE, views.ORACLE, decisions.ORACLE, steps.ORACLE)
