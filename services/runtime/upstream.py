"""How an exchange with another service fails: one tree, so that what may be tried again is told by class.

UpstreamError             it failed; `sent`: whether the other side can have seen the request
├── PoolFull              ours: every connection that may be open is in use
│   └── NoDescriptors     ours: this process may open no further socket
├── AnswerTooLarge        the other side sent more than its reader takes
└── ConnectionLost        closed or reset while the other side worked on it
    └── Truncated         the answer had begun

`str(error)` is for the log: it may hold an address, or what the other side said. `public` is for a client: a sentence
that is fixed for each class.
"""

from __future__ import annotations

UNREACHED = "no connection to it could be made"
MAX_MESSAGE_CHARS = 500
"""Characters of another service's words that are passed on or logged."""


def readable(words: str) -> str:
    """Another service's words, short enough and without control characters, for a client or the log."""
    return "".join(char if char.isprintable() else " " for char in words[:MAX_MESSAGE_CHARS])


class UpstreamError(Exception):
    """The exchange failed. `sent` is false when no byte of the request can have been read by the other side."""

    public = "it failed"
    """What a client is told of it: no address, and none of the other side's words."""

    def __init__(self, message: str, *, sent: bool = True) -> None:
        super().__init__(message)
        self.sent = sent
        if not sent:
            self.public = UNREACHED


class PoolFull(UpstreamError):
    """Every connection that may be open is in use. It says nothing about the other side."""

    def __init__(self, message: str) -> None:
        super().__init__(message, sent=False)


class NoDescriptors(PoolFull):
    """The system gave this process no further socket (EMFILE, ENFILE and the like): not the other side's fault."""


class AnswerTooLarge(UpstreamError):
    """The answer, or one line or header of it, is longer than its reader takes."""

    public = "its answer was too large"


class ConnectionLost(UpstreamError):
    """The other side closed or reset the connection while it worked on the request: it may have died of it."""

    public = "the connection to it was lost"


class Truncated(ConnectionLost):
    """The answer began and did not end: what came of it must not be taken for a whole one."""

    public = "its answer was cut"
