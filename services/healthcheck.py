"""The images' health check: exit status 0 if GET PATH on this port answers 200.

    healthcheck.py PORT [PATH]      PATH is /health/ready by default

It uses a bare socket, since the check runs every few seconds in every container and the import of `urllib.request`
takes five times as long as the request. The images have no curl.
"""

import socket
import sys

TIMEOUT_S = 2.0
READY = "/health/ready"
IS_READY = b"HTTP/1.1 200 "


def ready(port: int, path: str = READY) -> bool:
    """Whether the service answers 200. Raises OSError if it cannot be reached within TIMEOUT_S."""
    request = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode("ascii")
    with socket.create_connection(("127.0.0.1", port), TIMEOUT_S) as connection:
        connection.sendall(request)
        reply = b""
        while len(reply) < len(IS_READY) and (more := connection.recv(256)):
            reply += more
        return reply.startswith(IS_READY)


if __name__ == "__main__":
    try:
        sys.exit(0 if ready(int(sys.argv[1]), *sys.argv[2:]) else "not ready")
    except OSError as error:
        sys.exit(f"no answer: {error}")
