"""The images' health check: is the service on this port ready? Exit status 0 if GET PATH answers 200.

    healthcheck.py PORT [PATH]      PATH is /health/ready, if nothing else is said

A bare socket rather than an HTTP client, since the check runs every few seconds in every container and an import of
`urllib.request` costs five times what the question does; the images have no curl, and need none.
"""

import socket
import sys

TIMEOUT_S = 2.0
READY = "/health/ready"
IS_READY = b"HTTP/1.1 200 "


def ready(port: int, path: str = READY) -> bool:
    """Whether the answer begins as that of a service that is ready."""
    asked = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode("ascii")
    with socket.create_connection(("127.0.0.1", port), TIMEOUT_S) as connection:
        connection.sendall(asked)
        told = b""
        while len(told) < len(IS_READY) and (more := connection.recv(256)):
            told += more
        return told.startswith(IS_READY)


if __name__ == "__main__":
    try:
        sys.exit(0 if ready(int(sys.argv[1]), *sys.argv[2:]) else "not ready")
    except OSError as error:
        sys.exit(f"no answer: {error}")
