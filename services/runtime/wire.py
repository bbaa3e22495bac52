"""What an exchange needs of its connection. A protocol, so that the two modules do not import each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from services.runtime.http import Exchange


class Wire(Protocol):
    """The connection of an exchange."""

    @property
    def write_paused(self) -> bool:
        """The client reads more slowly than answers are written: await `until_read` before the next piece."""

    @property
    def scheme(self) -> str:
        """`https` where the connection is encrypted by TLS, else `http`."""

    @property
    def date_line(self) -> bytes:
        """The `date` header line, to the second."""

    memo: object | None
    """What a service keeps of this connection from one request to the next."""

    def send(self, data: bytes) -> None:
        """Write without waiting."""

    async def until_read(self) -> None:
        """Wait while the client is behind; also returns when the connection is lost."""

    def answered(self, exchange: Exchange) -> None:
        """The answer is complete: continue with the next request."""

    def ended(self, exchange: Exchange) -> None:
        """The handler has ended, with or without a complete answer."""
