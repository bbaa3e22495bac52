"""How an exchange with another service fails. The class decides what may be tried again.

UpstreamError             the server may have seen the request, unless `sent` is false
├── PoolFull              local: every connection that may be open is in use
│   └── NoDescriptors     local: this process may open no further socket
├── AnswerTooLarge        the server sent more than its reader accepts
└── ConnectionLost        closed or reset while the server worked on it
    └── Truncated         the answer had begun

`str(error)` is for the log: it may contain an address or text of the server.
"""

from __future__ import annotations

UNREACHED = "no connection could be made"
MAX_MESSAGE_CHARS = 500
"""Characters of another service's text that are passed on or logged."""


def readable(words: str) -> str:
    """Another service's text, shortened and without control characters, for a client or the log."""
    return "".join(char if char.isprintable() else " " for char in words[:MAX_MESSAGE_CHARS])


class UpstreamError(Exception):
    public = "internal error"
    """The sentence for a client: no address, and no text of the server."""

    def __init__(self, message: str, *, sent: bool = True) -> None:
        super().__init__(message)
        self.sent = sent
        if not sent:
            self.public = UNREACHED


class PoolFull(UpstreamError):
    def __init__(self, message: str) -> None:
        super().__init__(message, sent=False)


class NoDescriptors(PoolFull):
    """The system gave this process no further socket (EMFILE, ENFILE and the like)."""


class AnswerTooLarge(UpstreamError):
    public = "its response was too large"


class ConnectionLost(UpstreamError):
    """The server closed or reset the connection while it worked on the request, which may be the cause."""

    public = "the connection was lost"


class Truncated(ConnectionLost):
    public = "its response was incomplete"
