"""What a dashboard is made of, and the JSON model that Grafana provisions.

A dashboard is a list of rows; a row is a question and the panels that answer it. Every panel has a question for a
title, a unit and a description. Only what differs between panels is said by them: the rest is decided here, once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

SOURCE = {"type": "prometheus", "uid": "prometheus"}
COLUMNS = 24
GREEN, YELLOW, RED = "green", "yellow", "red"


@dataclass(frozen=True)
class Query:
    """One PromQL expression and the name of its series."""

    expr: str
    legend: str


@dataclass(frozen=True)
class Panel:
    """A question, and the queries that answer it."""

    title: str
    description: str
    unit: str
    queries: tuple[Query, ...]
    kind: Literal["timeseries", "stat"] = "timeseries"
    width: int = 8
    stacked: bool = False
    least: float | None = 0
    most: float | None = None
    thresholds: tuple[tuple[float, str], ...] = ()


@dataclass(frozen=True)
class Row:
    """A wider question over a few panels."""

    title: str
    panels: tuple[Panel, ...]


def dashboard(uid: str, title: str, description: str, rows: tuple[Row, ...]) -> dict[str, Any]:
    """The JSON model that Grafana provisions."""
    return {
        "uid": uid,
        "title": title,
        "description": description,
        "tags": ["weir"],
        "schemaVersion": 41,
        "editable": False,
        "graphTooltip": 1,
        "refresh": "5s",
        "time": {"from": "now-15m", "to": "now"},
        "timezone": "browser",
        "templating": {"list": [_tenant_choice()]},
        "annotations": {"list": []},
        "panels": _laid_out(rows),
    }


def _tenant_choice() -> dict[str, Any]:
    query = 'label_values(weir_requests_total{job="router"}, tenant)'
    return {
        "name": "tenant",
        "label": "Tenant",
        "type": "query",
        "datasource": SOURCE,
        "definition": query,
        "query": {"query": query, "refId": "tenant"},
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def _laid_out(rows: tuple[Row, ...]) -> list[dict[str, Any]]:
    panels: list[dict[str, Any]] = []
    y = 0
    for row in rows:
        place = {"x": 0, "y": y, "w": COLUMNS, "h": 1}
        panels.append({"id": len(panels) + 1, "type": "row", "title": row.title, "collapsed": False, "gridPos": place})
        x, y, height = 0, y + 1, 0
        for panel in row.panels:
            if x + panel.width > COLUMNS:
                x, y = 0, y + height
            height = 4 if panel.kind == "stat" else 8
            panels.append(_panel(panel, len(panels) + 1, {"x": x, "y": y, "w": panel.width, "h": height}))
            x += panel.width
        y += height
    return panels


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": SOURCE,
        "gridPos": place,
        "targets": [
            {"refId": chr(ord("A") + i), "datasource": SOURCE, "expr": query.expr, "legendFormat": query.legend}
            for i, query in enumerate(panel.queries)
        ],
        "fieldConfig": {"defaults": _field(panel), "overrides": []},
        "options": _options(panel),
    }


def _field(panel: Panel) -> dict[str, Any]:
    steps = [{"color": color, "value": value} for value, color in panel.thresholds] or [{"color": GREEN, "value": 0}]
    field: dict[str, Any] = {"unit": panel.unit, "thresholds": {"mode": "absolute", "steps": steps}}
    if panel.least is not None:
        field["min"] = panel.least
    if panel.most is not None:
        field["max"] = panel.most
    if panel.kind == "timeseries":
        field["color"] = {"mode": "palette-classic-by-name"}
        field["custom"] = {
            "lineWidth": 1,
            "fillOpacity": 30 if panel.stacked else 5,
            "showPoints": "never",
            "stacking": {"mode": "normal" if panel.stacked else "none"},
        }
    return field


def _options(panel: Panel) -> dict[str, Any]:
    if panel.kind == "stat":
        return {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "value", "graphMode": "area"}
    return {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
