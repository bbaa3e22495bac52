"""How an exchange with another service fails: one tree, so that what may be tried again is told by class.

UpstreamError             it failed; `sent`: whether the other side can have seen the request
├── PoolFull              ours: every connection that may be open is in use
└── ConnectionLost        closed or reset while the other side worked on it
    └── Truncated         the answer had begun
"""

from __future__ import annotations


class UpstreamError(Exception):
    """The exchange failed. `sent` is false when no byte of the request can have been read by the other side."""

    def __init__(self, message: str, *, sent: bool = True) -> None:
        super().__init__(message)
        self.sent = sent


class PoolFull(UpstreamError):
    """Every connection that may be open is in use. It says nothing about the other side."""

    def __init__(self, message: str) -> None:
        super().__init__(message, sent=False)


class ConnectionLost(UpstreamError):
    """The other side closed or reset the connection while it worked on the request: it may have died of it."""


class Truncated(ConnectionLost):
    """The answer began and did not end: what came of it must not be taken for a whole one."""
