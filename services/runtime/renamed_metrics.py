"""Metrics that were renamed. Each is exposed under its old name as well until the next release, so that dashboards and
alerts of an installation can move one at a time (docs/metrics.md, "Renamed metrics")."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

RENAMED: Mapping[str, str] = {
    "weir_degradation_level": "weir_level",
    "weir_governor_deferred_clients": "weir_governor_waiting",
    "weir_governor_slow_readers_total": "weir_governor_unread_total",
    "weir_http_connections": "weir_front_connections",
    "weir_http_incoming_bytes": "weir_front_incoming_bytes",
    "weir_http_rejections_total": "weir_front_refusals_total",
    "weir_http_source_rejections_total": "weir_front_source_refusals_total",
    "weir_log_dropped_lines_total": "weir_log_lost_lines_total",
    "weir_mechanism_enabled": "weir_policy",
    "weir_retrieval_coalesced_total": "weir_retrieval_joined_total",
}
"""The new name of each to its old name, as the text format writes them: a counter with `_total`."""
_BEGINNINGS = {f"# HELP {new} ": (new, old) for new, old in RENAMED.items()}


def old_names(text: Sequence[str]) -> str:
    """The families of `RENAMED` in one collector's text, by their old names.

    `text` is in Prometheus' text format, in pieces. The first piece holds every `# HELP` line, so the samples of a
    large family are not searched: the page of a thousand tenants has 30 MB, and a scrape runs on the event loop.
    """
    added: list[str] = []
    first = text[0]
    for beginning, (new, old) in _BEGINNINGS.items():
        if beginning not in first:
            continue
        start, whole = first.find(beginning), "".join(text)
        end = whole.find("\n# HELP ", start) + 1 or len(whole)
        samples = whole[start:end].splitlines(keepends=True)[1:]
        added.append(f"# HELP {old} Deprecated, removed in the next release: the new name is {new}.\n")
        added.extend(line.replace(new, old, 1) for line in samples)
    return "".join(added)
