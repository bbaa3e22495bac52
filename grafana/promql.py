"""The few PromQL forms the dashboards use. The window is Grafana's own, four scrapes or more."""

from __future__ import annotations


def rate(metric: str, labels: str, by: str = "") -> str:
    """The rate of a counter, summed, by labels or over all."""
    grouping = f" by ({by})" if by else ""
    return f"sum{grouping} (rate({metric}{{{labels}}}[$__rate_interval]))"


def quantile(q: float, histogram: str, labels: str, by: str = "") -> str:
    """A quantile of a histogram."""
    grouping = f"le, {by}" if by else "le"
    return f"histogram_quantile({q}, {rate(f'{histogram}_bucket', labels, grouping)})"


def share(part: str, whole: str, matching: str = "") -> str:
    """One rate as a share of another."""
    return f"{part} / {matching} {whole}" if matching else f"{part} / {whole}"
