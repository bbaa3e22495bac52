"""A renamed metric stays on the page under its old name for one release, with the same values."""

from __future__ import annotations

import re
from pathlib import Path

from prometheus_client import Gauge
from prometheus_client.parser import text_string_to_metric_families

from services.runtime.exposition import Registry, page_of
from services.runtime.instruments import Counter
from services.runtime.renamed_metrics import RENAMED, old_names
from tests.oracles.metricnames import texts

DOCUMENT = Path(__file__).parents[2] / "docs" / "metrics.md"


def test_a_renamed_metric_is_on_the_page_by_both_names_with_the_same_values() -> None:
    registry = Registry()
    rejections = Counter("weir_http_rejections", "By the listener.", ["code"], registry=registry)
    rejections.labels("yield").inc(3)
    Gauge("weir_other", "It was never renamed.", registry=registry).set(7)
    Gauge("weir_http_connections", "Open connections.", registry=registry).set(5)
    families = {family.name: family for family in text_string_to_metric_families(page_of(registry).decode())}
    assert families.keys() == {
        "weir_http_rejections", "weir_front_refusals", "weir_http_connections", "weir_front_connections", "weir_other",
    }  # fmt: skip
    for new, old in (
        ("weir_http_rejections", "weir_front_refusals"),
        ("weir_http_connections", "weir_front_connections"),
    ):
        assert families[new].type == families[old].type
        values = [(sample.labels, sample.value) for sample in families[new].samples if "_created" not in sample.name]
        assert values == [
            (sample.labels, sample.value) for sample in families[old].samples if "_created" not in sample.name
        ]
        assert values
    assert families["weir_front_connections"].documentation == (
        "Deprecated, removed in the next release: the new name is weir_http_connections."
    )


def test_a_page_without_renamed_metrics_is_left_as_it_is() -> None:
    page = "# HELP weir_other It.\n# TYPE weir_other gauge\nweir_other 1.0\n"
    assert old_names([page]) == ""


def test_every_new_name_is_a_metric_of_a_service_and_no_old_one_is() -> None:
    (text,) = texts().values()
    names = set(re.findall(r"^(weir_\w+) ", text, re.MULTILINE))
    assert names >= RENAMED.keys()
    assert names.isdisjoint(RENAMED.values())


def test_the_document_lists_every_renamed_metric() -> None:
    rows = re.findall(r"^\| `(weir_\w+)` \| `(weir_\w+)` \|$", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE)
    assert {new: old for old, new in rows} == RENAMED
