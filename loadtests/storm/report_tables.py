"""A report's tables: what each tenant got, why requests were not answered, and every second."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from loadtests.storm.report_words import name_of, under
from services.contracts.storm import Run


def tenants_of(runs: Sequence[Run]) -> str:
    """A table for each run."""
    columns = ("asked", "answered", "sent", "on_time", "late", "refused", "failed", "gone", "p50_ms", "p95_ms")
    heads = "".join(f"<th scope='col'>{_column(name)}</th>" for name in columns)
    tables = []
    for run in runs:
        rows = "".join(
            f"<tr><th scope='row'>{escape(tenant.id)}</th>"
            + "".join(f"<td>{_cell(getattr(tenant, name))}</td>" for name in columns)
            + "</tr>"
            for tenant in run.tenants
        )
        caption = f"<caption>{escape(under(run, runs))}</caption>" if len(runs) > 1 else ""
        tables.append(
            f"<div class='wide'><table>{caption}<thead><tr><th scope='col'>tenant</th>{heads}</tr></thead>"
            f"<tbody>{rows}</tbody></table></div>"
        )
    return f"<h2>Each tenant</h2>{''.join(tables)}"


def endings_of(run: Run, runs: Sequence[Run]) -> str:
    """By code, as clients were told; and what the router itself has counted."""
    told = [("refused", *item) for item in run.refused_by_code.items()]
    told += [("failed", *item) for item in run.failed_by_code.items()]
    rows = "".join(
        f"<tr><td>{kind}</td><td><code>{escape(code)}</code></td><td>{n:,}</td></tr>" for kind, code, n in told
    )
    counted = ", ".join(f"{escape(outcome)} {value:,.0f}" for outcome, value in run.router_counted.items())
    router = f"<p>The router counted for these tenants: {counted}.</p>" if counted else ""
    if not rows:
        return f"<h3>{escape(under(run, runs))}</h3>{router}" if router and len(runs) > 1 else router
    head = "<thead><tr><th scope='col'>ended</th><th scope='col'>code</th><th scope='col'>requests</th></tr></thead>"
    name = f" ({escape(name_of(run, runs))})" if len(runs) > 1 else ""
    return f"<h2>Why requests were not answered{name}</h2><table>{head}<tbody>{rows}</tbody></table>{router}"


def seconds_of(run: Run, runs: Sequence[Run]) -> str:
    """Folded away, for those who want to look closely."""
    columns = (
        "s", "sent", "on_time", "late", "refused", "failed", "gone", "held_back",
        "p50_ms", "p95_ms", "waiting", "level",
    )  # fmt: skip
    heads = "".join(f"<th scope='col'>{_column(name)}</th>" for name in columns)
    rows = "".join(
        "<tr>" + "".join(f"<td>{_cell(getattr(second, name))}</td>" for name in columns) + "</tr>"
        for second in run.series
    )
    name = f", {escape(name_of(run, runs))}" if len(runs) > 1 else ""
    return (
        f"<details><summary>The figures of each second{name}</summary><div class='wide'><table><thead><tr>{heads}</tr>"
        f"</thead><tbody>{rows}</tbody></table></div></details>"
    )


def _column(name: str) -> str:
    return escape({"s": "second", "p50_ms": "half, ms", "p95_ms": "95 %, ms"}.get(name, name.replace("_", " ")))


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"
