"""uvicorn, as it serves our connections: each listener is a `uvicorn.Server` whose protocol is `Connection`.

uvicorn makes the protocol for each connection that it accepts, holds the TLS settings, and shuts the listener down: it
stops accepting, tells every connection, waits for what runs, and cancels the rest after the grace.
"""

from __future__ import annotations

import asyncio
from typing import Any

import uvicorn

from services.runtime.connection import Connection
from services.runtime.shared import Shared
from services.runtime.tls import NO_TLS, TlsFiles

BACKLOG = 2048  # connections that wait to be accepted: a stall of a second must not turn anyone away


class Config(uvicorn.Config):
    """uvicorn's settings of one listener, and what its connections share.

    Raises OSError or ssl.SSLError for a file of `tls` that cannot be used.
    """

    def __init__(self, shared: Shared, tls: TlsFiles = NO_TLS) -> None:
        super().__init__(
            shared.app,  # type: ignore[arg-type]  # a connection asks it, and no other protocol of uvicorn's does
            http=connection_of,  # type: ignore[arg-type]  # any callable that makes a protocol will do
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            log_level="critical",  # what it says of a drain is no JSON, and said by us
            access_log=False,
            proxy_headers=False,
            workers=1,
            forwarded_allow_ips=[],
            **tls.settings(),
        )
        self.shared = shared
        self.load()


def connection_of(config: Config, **_: Any) -> Connection:
    """The protocol of one connection, as uvicorn asks for it."""
    return Connection(config.shared)


class Server(uvicorn.Server):
    """One listener."""

    config: Config

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.server_state.connections = config.shared.connections  # type: ignore[assignment]  # in their order
        self.server_state.tasks = config.shared.tasks  # type: ignore[assignment]  # in their order, too
        self.lifespan = config.lifespan_class(config)

    async def startup(self, sockets: Any = None) -> None:
        """Begin to accept on sockets that listen. A TLS handshake may take as long as the headers of a request."""
        loop, config = asyncio.get_running_loop(), self.config
        self.servers = [
            await loop.create_server(
                lambda: connection_of(config),
                sock=sock,
                backlog=BACKLOG,
                ssl=config.ssl,
                ssl_handshake_timeout=config.shared.limits.headers_s if config.ssl else None,
            )
            for sock in sockets
        ]
        self.started = True
