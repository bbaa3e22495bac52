"""The JSON model of a dashboard, as Grafana provisions it.

Written by hand and checked against Grafana's own schema by a test, which knows every field that may stand here.
"""

from __future__ import annotations

from typing import Any

from grafana.panels import GREEN, Choice, Dashboard, Panel, Row

SOURCE = {"type": "prometheus", "uid": "prometheus"}
COLUMNS = 24
HEIGHTS = {"stat": 4, "timeseries": 8, "state-timeline": 6}
TAG = "weir"


def model(dashboard: Dashboard) -> dict[str, Any]:
    """What stands in the file."""
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "description": dashboard.description,
        "tags": [TAG],
        "schemaVersion": 41,  # what Grafana 12 writes; it brings older ones up to date when it loads them
        "editable": False,
        "graphTooltip": 1,
        "refresh": "5s",
        "time": {"from": "now-15m", "to": "now"},
        "timezone": "browser",
        "links": [_to_the_others()],
        "templating": {"list": [_choice(choice) for choice in dashboard.choices]},
        "annotations": {"list": []},
        "panels": _laid_out(dashboard.rows),
    }


def _to_the_others() -> dict[str, Any]:
    """A link for each dashboard with our tag, with the same time and the same choices."""
    return {
        "title": "Weir",
        "type": "dashboards",
        "icon": "external link",
        "tooltip": "",
        "tags": [TAG],
        "asDropdown": False,
        "targetBlank": False,
        "includeVars": True,
        "keepTime": True,
    }


def _choice(choice: Choice) -> dict[str, Any]:
    return {
        "name": choice.name,
        "label": choice.label,
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": choice.query, "refId": choice.name},
        "refresh": 2,
        "sort": 1,
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
        number = len(panels) + 1
        panels.append(
            {"id": number, "type": "row", "title": row.title, "collapsed": False, "gridPos": place, "panels": []}
        )
        x, y, height = 0, y + 1, 0
        for panel in row.panels:
            if x + panel.width > COLUMNS:
                x, y, height = 0, y + height, 0
            height = max(height, HEIGHTS[panel.kind])
            panels.append(_panel(panel, len(panels) + 1, {"x": x, "y": y, "w": panel.width, "h": HEIGHTS[panel.kind]}))
            x += panel.width
        y += height
    return panels


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    drawn = {
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
        "fieldConfig": {"defaults": _field(panel), "overrides": [_dashed(i) for i in _bounds(panel)]},
        "options": _options(panel),
    }
    if panel.more:
        drawn["links"] = [_into(panel.more)]
    return drawn


def _into(uid: str) -> dict[str, Any]:
    return {
        "title": "More about it",
        "type": "link",
        "icon": "dashboard",
        "tooltip": "",
        "tags": [],
        "url": f"/d/{uid}?${{__url_time_range}}&${{__all_variables}}",
        "asDropdown": False,
        "targetBlank": False,
        "includeVars": False,
        "keepTime": False,
    }


def _bounds(panel: Panel) -> list[str]:
    return [chr(ord("A") + i) for i, query in enumerate(panel.queries) if query.bound]


def _dashed(query: str) -> dict[str, Any]:
    style = {"id": "custom.lineStyle", "value": {"fill": "dash", "dash": [8, 6]}}
    plain = {"id": "custom.fillOpacity", "value": 0}
    return {"matcher": {"id": "byFrameRefID", "options": query}, "properties": [style, plain]}


def _field(panel: Panel) -> dict[str, Any]:
    bounds = panel.thresholds or ((0, GREEN),)
    # Below the first step lies everything: Grafana wants no value there.
    steps = [{"color": color, "value": None if i == 0 else value} for i, (value, color) in enumerate(bounds)]
    field: dict[str, Any] = {"unit": panel.unit, "thresholds": {"mode": "absolute", "steps": steps}}
    if panel.kind == "stat":
        field["noValue"] = "nothing now"
    if panel.values:
        options = {str(value): {"text": word, "color": color} for value, word, color in panel.values}
        field["mappings"] = [{"type": "value", "options": options}]
    if panel.kind == "timeseries":
        field["custom"] = _line(panel)
    elif panel.kind == "state-timeline":
        field["custom"] = {"lineWidth": 0, "fillOpacity": 70}
    if panel.kind != "state-timeline":
        field |= {key: value for key, value in (("min", panel.least), ("max", panel.most)) if value is not None}
    field["color"] = {"mode": "palette-classic-by-name" if panel.kind == "timeseries" else "thresholds"}
    return field


def _line(panel: Panel) -> dict[str, Any]:
    return {
        "drawStyle": "line",
        "lineInterpolation": "stepAfter" if panel.steps else "linear",
        "lineWidth": 1,
        "fillOpacity": 30 if panel.stacked else 5,
        "showPoints": "never",
        "stacking": {"mode": "normal" if panel.stacked else "none"},
    }


def _options(panel: Panel) -> dict[str, Any]:
    legend = {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []}
    if panel.kind == "stat":
        return {
            "reduceOptions": {"calcs": ["lastNotNull"]},
            "colorMode": "value",
            "graphMode": "area",
            "justifyMode": "auto",
            "textMode": "auto",
            "orientation": "auto",
        }
    if panel.kind == "state-timeline":
        return {"legend": legend, "tooltip": {"mode": "single", "sort": "none"}, "showValue": "auto", "rowHeight": 0.9}
    return {"legend": legend, "tooltip": {"mode": "multi", "sort": "desc"}}
