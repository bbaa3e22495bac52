"""The images' health check: is the service on this port ready? Exit status 0 if it is.

    healthcheck.py PORT           GET /health/ready answers 200
    healthcheck.py PORT ping      a governor answers a ping, be it full or not

A bare socket rather than an HTTP client, since the check runs every few seconds in every container and an import of
`urllib.request` costs five times what the question does; the images have no curl, and need none.
"""

import socket
import sys

TIMEOUT_S = 2.0
QUESTIONS = {
    "http": (b"GET /health/ready HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", b"HTTP/1.1 200 "),
    "ping": (b'{"v":0,"verb":"ping","job":"J_health","seq":1}\n', b'{"v":0,"verb":"confirm","job":"J_health","seq":2,'),
}


def ready(port: int, question: str = "http") -> bool:
    """Whether the answer begins as that of a service that is ready."""
    asked, expected = QUESTIONS[question]
    with socket.create_connection(("127.0.0.1", port), TIMEOUT_S) as connection:
        connection.sendall(asked)
        told = b""
        while len(told) < len(expected) and (more := connection.recv(256)):
            told += more
        return told.startswith(expected)


if __name__ == "__main__":
    try:
        sys.exit(0 if ready(int(sys.argv[1]), *sys.argv[2:]) else "not ready")
    except OSError as error:
        sys.exit(f"no answer: {error}")
