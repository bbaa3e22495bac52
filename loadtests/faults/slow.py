"""Slow down a simulated worker and reset it, through `/faults` on its metrics listener.

A fault has a duration, so the worker recovers even if the caller is killed.
"""

from __future__ import annotations

import json
from http.client import HTTPConnection, HTTPException
from urllib.parse import urlsplit

from loadtests.internal import headers


class NoFault(OSError):
    """The request to the worker failed; the message says why."""


def put(url: str, slow_factor: float, for_s: float, within_s: float) -> None:
    """Multiply the time of its steps by `slow_factor` for `for_s` seconds."""
    _ask("PUT", url, within_s, {"slow_factor": slow_factor, "for_s": for_s})


def repair(url: str, within_s: float) -> None:
    _ask("DELETE", url, within_s)


def check(url: str, within_s: float) -> None:
    _ask("GET", url, within_s)


def _ask(method: str, url: str, within_s: float, body: object = None) -> None:
    """`url` is the metrics listener's. Raises NoFault."""
    parts = urlsplit(url)
    connection = HTTPConnection(parts.hostname or "", parts.port or 80, timeout=within_s)
    try:
        data = None if body is None else json.dumps(body)
        content_type = {"content-type": "application/json"} if data else {}
        connection.request(method, "/faults", data, {**content_type, **headers()})
        status = connection.getresponse().status
    except (OSError, HTTPException) as error:
        raise NoFault(f"{url}/faults does not answer ({error or type(error).__name__})") from error
    finally:
        connection.close()
    if status == 401:
        raise NoFault(f"{url}/faults asks for the token: set DATA_DIR to the stack's folder, or INTERNAL_TOKEN")
    if status != 200:
        raise NoFault(f"{url}/faults answers with status {status}: is it a simulated worker, in a lab?")
