"""The few PromQL forms the dashboards use. The window is Grafana's own, four scrapes or more."""

from __future__ import annotations

from grafana.panels import Query

WINDOW = "$__rate_interval"


def rate(metric: str, labels: str, by: str = "") -> str:
    """The rate of a counter, summed, by labels or over all."""
    grouping = f" by ({by})" if by else ""
    return f"sum{grouping} (rate({metric}{{{labels}}}[{WINDOW}]))"


def quantile(q: float, histogram: str, labels: str, by: str = "") -> str:
    """A quantile of a histogram."""
    grouping = f"le, {by}" if by else "le"
    return f"histogram_quantile({q:g}, {rate(f'{histogram}_bucket', labels, grouping)})"


def quantiles(histogram: str, labels: str) -> tuple[Query, ...]:
    """The three that people quote."""
    return tuple(Query(quantile(q / 100, histogram, labels), f"p{q}") for q in (50, 95, 99))


def mean(histogram: str, labels: str, by: str = "") -> str:
    """The mean of what a histogram has seen."""
    return share(rate(f"{histogram}_sum", labels, by), rate(f"{histogram}_count", labels, by))


def share(part: str, whole: str, matching: str = "") -> str:
    """One rate as a share of another; nothing while the other is 0."""
    return f"{part} / {matching} ({whole} > 0)" if matching else f"{part} / ({whole} > 0)"


def share_of_all(part: str, whole: str, by: str) -> str:
    """What each value of a label has of the whole."""
    return share(part, whole, f"ignoring ({by}) group_left ()")
