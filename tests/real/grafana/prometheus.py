"""A real Prometheus over a real stack: the committed configuration, with the ports of today."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import yaml

from services.cli.child import dies_with_parent
from services.cli.ports import free_port
from tests.grafana.queries import ROOT
from tests.real.stack.stand import until

PROMETHEUS = shutil.which("prometheus")
SCRAPES_EVERY_S = 0.5
WINDOW = "4s"  # Grafana's $__rate_interval is at least four scrapes; these come late at times


def configuration(addresses: dict[str, str], token: Path) -> dict[str, Any]:
    """grafana/prometheus.embedded.yml, quicker, at these addresses (by instance), with the token of this file.

    A job none of whose instances is there is left out: the storm bench's. An instance that the file does not know is
    added to the job that its name begins with: `router-1`, as one that compose starts and Prometheus finds by name.
    """
    content: dict[str, Any] = yaml.safe_load((ROOT / "grafana/prometheus.embedded.yml").read_text(encoding="utf-8"))
    every = f"{SCRAPES_EVERY_S * 1000:.0f}ms"
    content["global"] = {"scrape_interval": every, "scrape_timeout": every, "evaluation_interval": every}
    content["rule_files"] = [str(ROOT / "grafana" / pattern) for pattern in content["rule_files"]]
    jobs = [job for job in content["scrape_configs"] if job["job_name"] != "prometheus"]
    for job in jobs:
        job["authorization"]["credentials_file"] = str(token)
    for job in jobs:
        known = [group["labels"]["instance"] for group in job["static_configs"]]
        added = [name for name in addresses if name not in known and name.rpartition("-")[0] == job["job_name"]]
        job["static_configs"] = [
            {"targets": [addresses[name]], "labels": {"instance": name}}
            for name in (*known, *added)
            if name in addresses
        ]
    content["scrape_configs"] = [job for job in jobs if job["static_configs"]]
    return content


@dataclass
class Prometheus:
    """What one asks of it."""

    url: str
    http: httpx2.Client
    began_at: float = 0.0

    def get(self, path: str, **words: Any) -> Any:
        reply = self.http.get(f"{self.url}/api/v1/{path}", params=words)
        assert reply.status_code == 200, reply.text
        return reply.json()["data"]

    def ready(self) -> bool:
        with contextlib.suppress(httpx2.TransportError):
            return self.http.get(f"{self.url}/-/ready").status_code == 200
        return False

    def now(self) -> float:
        return float(self.get("query", query="time()")["result"][1])

    def holds(self, expression: str) -> bool:
        """There is something of which this is true, now."""
        return bool(self.get("query", query=expression)["result"])

    def seen(self, expression: str) -> list[float]:
        """Every number that an expression has had since the beginning."""
        span = {"start": self.began_at, "end": self.now(), "step": SCRAPES_EVERY_S}
        series = self.get("query_range", query=expression, **span)["result"]
        numbers = (float(value) for one in series for _, value in one["values"])
        return [number for number in numbers if math.isfinite(number)]

    def most(self, expression: str) -> float | None:
        """The largest of them; None where there was none."""
        return max(self.seen(expression), default=None)


@contextlib.contextmanager
def running(folder: Path, addresses: dict[str, str]) -> Iterator[Prometheus]:
    """Started, ready, and gone afterwards."""
    file, token, port = folder / "prometheus.yml", folder / "token", free_port()
    token.write_text("a stack on loopback without a token asks for none", encoding="ascii")
    file.write_text(yaml.safe_dump(configuration(addresses, token)), encoding="utf-8")
    with (folder / "prometheus.log").open("wb") as log, httpx2.Client(timeout=10, trust_env=False) as http:
        process = subprocess.Popen(
            [
                str(PROMETHEUS), f"--config.file={file}", f"--storage.tsdb.path={folder / 'tsdb'}",
                f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn",
            ],
            env={"PATH": os.environ["PATH"]}, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
            preexec_fn=dies_with_parent(signal.SIGKILL),
        )  # fmt: skip
        try:
            prometheus = Prometheus(f"http://127.0.0.1:{port}", http)
            until(prometheus.ready, "Prometheus is ready")
            prometheus.began_at = prometheus.now()
            yield prometheus
        finally:
            process.terminate()
            process.wait(20)
