"""Load generators of the field before the router: each request of a short run is answered, by their own reports.

Their flags are in docs/load-testing.md. Skipped where one is not installed: `python -m tests.real.clients`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from loadtests.cluster.stand import key_of
from tests.real.clients.recorder import recorder
from tests.real.clients.stand import OPEN, OWN, Running, in_environment, running
from tests.real.clients.table import AIPERF, GUIDELLM, HERE, Client

REQUESTS = 24


class LoadGenerator(NamedTuple):
    client: Client
    words: Callable[[str, Path], list[str]]
    """Its command line, by the router's address and the tokenizer's folder."""
    report: str
    counts: Callable[[Any], tuple[int, int]]
    """(answered, not answered), from its report."""


def guidellm(url: str, tokenizer: Path) -> list[str]:
    return [
        "run",
        "--backend", f"kind=openai_http,target={url},model={OWN},api_key={key_of(OPEN)},"
        "request_format=/v1/chat/completions",
        "--profile", "kind=concurrent,streams=4",
        "--constraint", f"kind=max_requests,count={REQUESTS}",
        "--tokenizer", f"kind=hf_auto,model={tokenizer}",
        "--data", "kind=synthetic_text,prompt_tokens=32,output_tokens=8",
        "--output", "kind=json,path=report.json",
        "--disable-console-interactive",
    ]  # fmt: skip


def aiperf(url: str, tokenizer: Path) -> list[str]:
    return [
        "profile", "--url", url, "--model", OWN, "--api-key", key_of(OPEN), "--endpoint-type", "chat", "--streaming",
        "--use-server-token-count", "--tokenizer", str(tokenizer), "--concurrency", "4",
        "--request-count", str(REQUESTS), "--isl", "32", "--osl", "8", "--num-dataset-entries", "8",
        "--random-seed", "1", "--ui", "none", "--artifact-dir", "out", "--no-gpu-telemetry", "--no-server-metrics",
    ]  # fmt: skip


def counted_by_guidellm(report: Any) -> tuple[int, int]:
    (run,) = report["benchmarks"]
    totals = run["metrics"]["request_totals"]
    return totals["successful"], totals["total"] - totals["successful"]


def counted_by_aiperf(report: Any) -> tuple[int, int]:
    assert not report["was_cancelled"]
    return int(report["request_count"]["avg"]), len(report["error_summary"])


GENERATORS = (
    LoadGenerator(GUIDELLM, guidellm, "report.json", counted_by_guidellm),
    LoadGenerator(AIPERF, aiperf, "out/profile_export_aiperf.json", counted_by_aiperf),
)


@pytest.fixture(scope="module")
def stand(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with recorder() as url, running(url, tmp_path_factory.mktemp("load")) as made:
        yield made


@pytest.mark.parametrize("generator", GENERATORS, ids=lambda generator: generator.client.name)
def test_each_request_of_a_short_run_is_answered(stand: Running, generator: LoadGenerator) -> None:
    client = generator.client
    if why := client.missing():
        pytest.skip(why)
    tokenizer = stand.folder / f"tokenizer-{client.name}"
    made = in_environment(client, "python", [str(HERE / "scripts" / "tinytokenizer.py"), str(tokenizer)], stand.folder)
    assert made.returncode == 0, made.stderr
    done = in_environment(client, client.name, generator.words(stand.router.url, tokenizer), stand.folder)
    assert done.returncode == 0, done.stdout + done.stderr
    report = stand.home_of(client) / generator.report
    assert generator.counts(json.loads(report.read_text(encoding="utf-8"))) == (REQUESTS, 0)
    stand.until_nobody_is_served()
