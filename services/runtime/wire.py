"""What an exchange needs of its connection, so that neither has to know the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from services.runtime.http import Exchange


class Wire(Protocol):
    """What an exchange needs of the connection that it came by."""

    @property
    def write_paused(self) -> bool:
        """The client reads slower than we write: before another piece, wait `until_read`."""

    @property
    def scheme(self) -> str:
        """`https` where the connection is encrypted by TLS, else `http`."""

    @property
    def date_line(self) -> bytes:
        """The header line with the time of day, to the second."""

    def send(self, data: bytes) -> None:
        """Write, without waiting."""

    async def until_read(self) -> None:
        """Wait while the client is behind; returns when it is lost, too."""

    def answered(self, exchange: Exchange) -> None:
        """The answer is complete: turn to the next request."""

    def ended(self, exchange: Exchange) -> None:
        """Its handler has ended, whether or not with a complete answer."""
