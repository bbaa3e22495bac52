"""Figures as lines of text."""

from __future__ import annotations

from collections.abc import Iterator

from loadtests.load.figures import Figures, Quantiles, Share

SHOWN_TENANTS = 10


def lines(figures: Figures) -> Iterator[str]:
    begin, end = figures.window_s
    yield f"{figures.requests:,} requests; counted: those that arrived from second {begin:g} to {end:g}"
    for name, share in {"all": figures.all, **_busiest(figures.tenants)}.items():
        yield ""
        yield from _share(name, share)
    if len(figures.tenants) > SHOWN_TENANTS:
        yield ""
        yield f"and {len(figures.tenants) - SHOWN_TENANTS} tenants more"
    yield ""
    yield f"tries: {', '.join(f'{name} {count:,}' for name, count in figures.tries.items()) or 'none'}"
    yield f"answers sent after their deadline: {figures.late_answers}"
    yield f"retries invited without a hint: {figures.hintless}"
    yield f"generator late: {_quantiles(figures.generator_ms)}; {figures.generator_late:.2%} beyond the limit"
    yield from figures.notes


def _busiest(tenants: dict[str, Share]) -> dict[str, Share]:
    """The tenants with the most requests; empty for a single tenant, which equals all."""
    ordered = sorted(tenants.items(), key=lambda each: -each[1].arrivals)
    return dict(ordered[:SHOWN_TENANTS]) if len(ordered) > 1 else {}


def _share(name: str, share: Share) -> Iterator[str]:
    yield (
        f"{name}: {share.offered_per_s:,.1f}/s offered, {share.goodput_per_s:,.1f}/s on time ({share.on_time:.2%}), "
        f"{share.goodput_tokens_per_s:,.1f} tokens/s, {share.attempts:.2f} tries each"
    )
    for ending, count in share.endings.items():
        yield f"  {ending:<34} {count:>9,} {count / max(1, share.arrivals):>8.2%}"
    for what, quantiles in (
        ("answers", share.answers_ms),
        ("first token", share.first_token_ms),
        ("refusals", share.refusals_ms),
    ):
        if quantiles.count:
            yield f"  {what:<12} {_quantiles(quantiles)}"
    if share.cut:
        yield f"  cut          {share.cut:.1%} of the answers"


def _quantiles(found: Quantiles) -> str:
    return f"p50 {found.p50:.1f} ms, p95 {found.p95:.1f} ms, p99 {found.p99:.1f} ms, most {found.max:.1f} ms"
