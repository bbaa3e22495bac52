"""uvicorn as it serves our connections: a listener is a `uvicorn.Server` whose protocol is `Connection`."""

from __future__ import annotations

import asyncio
import socket
from typing import Any, cast

import uvicorn

from services.runtime.connection import Connection
from services.runtime.shared import Shared
from services.runtime.tls import NO_TLS, TlsFiles

BACKLOG = 2048  # connections that wait to be accepted, so that a stall of a second refuses none


class Config(uvicorn.Config):
    """uvicorn's settings of a listener, and its `Shared` state. Raises OSError for a TLS file that cannot be used."""

    def __init__(self, shared: Shared, tls: TlsFiles = NO_TLS) -> None:
        super().__init__(
            shared.app,  # type: ignore[arg-type]  # only `Connection` calls it
            http=connection_of,  # type: ignore[arg-type]  # any callable that makes a protocol works
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            log_level="critical",  # its messages are not JSON, and `serve` logs the drain
            access_log=False,
            proxy_headers=False,
            workers=1,
            forwarded_allow_ips=[],
            **tls.settings(),
        )
        self.shared = shared
        self.load()


def connection_of(config: Config, **_: Any) -> asyncio.Protocol:
    return cast(asyncio.Protocol, Connection(config.shared))


class Server(uvicorn.Server):
    config: Config

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.server_state.connections = config.shared.connections  # type: ignore[assignment]  # ordered
        self.server_state.tasks = config.shared.tasks  # type: ignore[assignment]  # ordered
        self.lifespan = config.lifespan_class(config)

    async def startup(self, sockets: Any = None) -> None:
        """Start to accept on these sockets."""
        self.servers = [await self.listen(sock) for sock in sockets]
        self.started = True

    async def listen(self, sock: socket.socket) -> asyncio.Server:
        """Accept from a socket. A TLS handshake may take as long as a request's headers."""
        config = self.config
        return await asyncio.get_running_loop().create_server(
            lambda: connection_of(config),
            sock=sock,
            backlog=BACKLOG,
            ssl=config.ssl,
            ssl_handshake_timeout=config.shared.limits.headers_s if config.ssl else None,
        )

    def stop_listening(self) -> None:
        """Close the listening sockets; `shutdown` does the rest."""
        for server in self.servers:
            server.close()
