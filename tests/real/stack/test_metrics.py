"""Every metric stands in docs/metrics.md as it is on the pages of a stack that works, and nothing else does."""

from __future__ import annotations

import asyncio
import re
import socket
from collections import defaultdict
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

from services.runtime.renamed_metrics import RENAMED
from tests.real.stack.stand import ROOT, Part, Stand, chat, until
from tests.real.stack.test_governor import SHORT, client_of, governor_before, sent

PAGE = (ROOT / "docs/metrics.md").read_text()
NAMED = re.compile(r"`([^`]+)`")
LONGEST_S = 120.0
OF_THE_PROCESS = ("process_", "python_")
FRONT = "Router, retrieval, workers and the storm bench"


@dataclass
class Family:
    """One metric, as a page or a table has it."""

    type: str
    labels: set[str] = field(default_factory=set)
    values: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set), compare=False)


def rows(heading: str) -> list[list[str]]:
    """The cells of a section's table, without its head."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    found = [[cell.strip() for cell in row[1:-1].split("|")] for row in section.splitlines() if row.startswith("|")]
    assert len(found) > 2, f"no table under {heading}"
    return found[2:]


def words(cell: str) -> set[str]:
    return {word.strip() for word in cell.split(",") if word.strip()}


def table(*headings: str) -> dict[str, Family]:
    return {
        name.strip("`"): Family(kind, words(labels)) for heading in headings for name, kind, labels, _ in rows(heading)
    }


def page(part: Part) -> dict[str, Family]:
    """What a service says of itself."""
    text = part.http.get(f"http://127.0.0.1:{part.metrics_port}/metrics").text
    found: dict[str, Family] = {}
    for family in text_string_to_metric_families(text):
        if family.name.startswith(OF_THE_PROCESS):
            continue
        name = f"{family.name}_total" if family.type == "counter" else family.name
        if name in RENAMED.values():
            continue
        seen = found[name] = Family(family.type)
        assert family.samples, f"{part.name} has no sample of {name}: this test exercises too little"
        for sample in family.samples:
            seen.labels |= sample.labels.keys() - {"le"}
            for label, value in sample.labels.items():
                seen.values[label].add(value)
    return found


def known_values(service: str, metric: str, label: str) -> set[str] | None:
    """What a label may be, by the table of labels; None where a configuration says."""
    found = [
        None if values.startswith("configured: ") else set(NAMED.findall(values))
        for named, services, metrics, values in rows("Labels")
        if named == label and service in words(services) and (metrics == "all" or metric in NAMED.findall(metrics))
    ]
    assert len(found) == 1, f"the table of labels has {len(found)} rows for {label} of {metric} of the {service}"
    return found[0]


async def exercise(stand: Stand, governor: Part) -> None:
    async with stand.client() as client:
        assert (await chat(client)).served
        assert (await chat(client, stream=True)).served
    async with client_of(governor, "J_metrics") as (jobs, _):
        assert (await sent(jobs, SHORT))["status"] == "done"


def test_the_pages_of_all_services_are_what_the_tables_say(stand: Stand) -> None:
    with governor_before(stand, stand.router) as governor:
        asyncio.run(exercise(stand, governor))
        stand.ask()
        pages = {
            "router": (page(stand.router), table("Router", FRONT)),
            "retrieval": (page(stand.retrieval), table("Retrieval", FRONT)),
            "worker": (page(stand.workers[0]), table("Worker", FRONT)),
            "governor": (page(governor), table("Governor")),
        }
    for service, (seen, written) in pages.items():
        assert seen == written, service
        for name, family in seen.items():
            check_buckets(name, family)
            for label in family.labels:
                closed = known_values(service, name, label)
                assert closed is None or family.values[label] <= closed, (service, name, label)


def check_buckets(name: str, family: Family) -> None:
    """Of times; sizes and shares have edges of their own."""
    if family.type == "histogram" and name.endswith("_seconds"):
        edges = sorted(float(edge) for edge in family.values["le"])
        assert edges[-2:] == [LONGEST_S, float("inf")], name
        assert edges[0] <= 0.001, name


def test_what_is_refused_before_it_is_a_request_is_counted_and_logged(stand: Stand) -> None:
    def told(nonsense: bytes) -> bytes:
        with socket.create_connection(("127.0.0.1", stand.router.port), timeout=10) as sock:
            sock.sendall(nonsense)
            answer = b""
            while piece := sock.recv(4096):
                answer += piece
            return answer

    name, router = "weir_http_rejections_total", stand.router
    before, requests = router.metrics(name, "code"), router.metric("weir_requests_total")
    assert b" 400 " in told(b"\x16\x03\x01 this is no HTTP\r\n\r\n")
    answer = told(b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\nhost: localhost\r\n\r\n")
    assert b" 414 " in answer
    after = router.metrics(name, "code")
    more = {code: after[code] - before.get(code, 0) for code in after}  # others may have been refused before this test
    assert {code: number for code, number in more.items() if number} == {"invalid_request": 1, "url_too_long": 1}
    assert router.metric("weir_requests_total") == requests
    id = re.search(rb"x-request-id: (\S+)", answer)
    assert id is not None
    until(lambda: id[1].decode() in router.log.read_text(), "the refusal is in the log")
    (line,) = [record for record in router.records() if record.get("id") == id[1].decode()]
    assert (line["event"], line["status"], line["code"]) == ("rejected before routing", 414, "url_too_long")
