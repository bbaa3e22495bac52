"""The images' health check: is the service on this port ready? Exit status 0 if it is.

A bare socket rather than an HTTP client, since the check runs every few seconds in every container and an import of
`urllib.request` costs five times what the question does; the images have no curl, and need none.
"""

import socket
import sys

TIMEOUT_S = 2.0


def ready(port: int) -> bool:
    """Whether GET /health/ready answers 200."""
    with socket.create_connection(("127.0.0.1", port), TIMEOUT_S) as connection:
        connection.sendall(b"GET /health/ready HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        return connection.recv(64).startswith(b"HTTP/1.1 200 ")


if __name__ == "__main__":
    try:
        sys.exit(0 if ready(int(sys.argv[1])) else "not ready")
    except OSError as error:
        sys.exit(f"no answer: {error}")
