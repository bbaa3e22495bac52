"""A scenario's fault: simulated workers become slow for a while.

A fault lasts three seconds and is renewed every second, so the worker recovers even if this process is killed. Faults
go only to this machine or `worker-N` of the compose network.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from urllib.parse import urlsplit

from loadtests.faults import slow as faults
from loadtests.scenarios.people import Stage
from loadtests.target import refusal

LEASE_S = 3.0
WITHIN_S = 1.0
METRICS_OFFSET = 1000  # `weir up` puts a worker's metrics listener this far above its port
DEFAULT_ROUTER_PORT = 8000
DEFAULT_WORKER_PORT = 8010
DEFAULT_WORKERS = 2
MAX_WORKERS = 64

_COMPOSE_WORKER = re.compile(r"http://worker-\d{1,3}(:\d{1,5})?")


class NoFaults(Exception):
    """The workers cannot be slowed; the message gives the reason and the remedy."""


class Trouble:
    """Follows the stages, once a second, and records when a fault was in effect."""

    def __init__(self, urls: Sequence[str], now: Callable[[], float] = perf_counter) -> None:
        self._urls = list(urls)
        self._now = now
        self._slowed: list[str] = []
        self.windows: list[tuple[float, float]] = []  # begin and end of each fault; the last one grows
        self.missed = 0

    def check(self) -> None:
        """Raises NoFaults unless every worker takes faults."""
        if not self._urls:
            raise NoFaults("it is not known where their workers take faults: set FAULT_URLS, or WORKER_PORT")
        for url in self._urls:
            try:
                faults.check(url, WITHIN_S)
            except faults.NoFault as error:
                raise NoFaults(str(error)) from None

    def follow(self, stage: Stage | None) -> None:
        """Renew this stage's fault, and end the last stage's."""
        wanted = _which(self._urls, stage)
        for url in [url for url in self._slowed if url not in wanted]:
            _done(faults.repair, url)
        if self._slowed and not wanted:
            self._felt_until_now()
        if wanted and stage is not None:
            self._put(wanted, stage.slow_factor)
        self._slowed = wanted

    def repair(self) -> None:
        self.follow(None)

    def felt(self, began: float, ended: float) -> bool:
        """Whether a fault was in effect while this request was under way."""
        return any(began < until and start < ended for start, until in self.windows)

    def _put(self, urls: Sequence[str], factor: float) -> None:
        if not self._slowed:
            self.windows.append((self._now(), self._now() + LEASE_S))
        self.missed += sum(not _done(faults.put, url, factor, LEASE_S) for url in urls)
        start, _ = self.windows[-1]
        self.windows[-1] = (start, self._now() + LEASE_S)

    def _felt_until_now(self) -> None:
        start, until = self.windows[-1]
        self.windows[-1] = (start, min(until, self._now()))


def urls_of(environment: Mapping[str, str], host: str) -> list[str]:
    """The metrics listeners of the workers behind this router. Raises NoFaults for an address outside this lab.

    FAULT_URLS names them. Otherwise they are where `weir up` puts them, if the ports are the defaults or WORKER_PORT is
    set, so that another stack's workers are not slowed.
    """
    named = [url for url in environment.get("FAULT_URLS", "").split(",") if url]
    usual = not refusal(host) and urlsplit(host).port == DEFAULT_ROUTER_PORT
    if not named and (environment.get("WORKER_PORT") or usual):
        first = int(environment.get("WORKER_PORT") or DEFAULT_WORKER_PORT) + METRICS_OFFSET
        count = min(int(environment.get("WORKERS_COUNT") or DEFAULT_WORKERS), MAX_WORKERS)
        named = [f"http://127.0.0.1:{first + index}" for index in range(count)]
    for url in named:
        if refusal(url) and not _COMPOSE_WORKER.fullmatch(url):
            raise NoFaults(f"{url} is neither on this machine nor a worker of the compose network")
    return named


def _which(urls: Sequence[str], stage: Stage | None) -> list[str]:
    if stage is None or not stage.breaks_something:
        return []
    return list(urls) if stage.slow_workers == "all" else list(urls[:1])


def _done(ask: Callable[..., None], url: str, *more: float) -> bool:
    """Whether the worker accepted it."""
    try:
        ask(url, *more, within_s=WITHIN_S)
    except faults.NoFault:
        return False
    return True
