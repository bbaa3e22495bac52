"""What doing less for each is worth under overload: measured, and as a page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import msgspec

from loadtests.bench.degradation.corpus import CHUNK_WORDS, CHUNKS_PER_DOCUMENT
from loadtests.bench.degradation.ladders import OFF, RETRIEVAL, WHOLE
from loadtests.bench.degradation.load import ANSWER_TOKENS, KNOWN, KNOWN_EVERY, TOP_K, Run
from loadtests.bench.degradation.measure import (
    LOADS,
    QUICK_LENGTH,
    SLOW,
    SLOW_LOAD,
    USUAL_LENGTH,
    Cost,
    Measured,
)
from loadtests.bench.degradation.measure import measure as everything
from loadtests.bench.degradation.plots import plots
from loadtests.bench.degradation.stand import AMPLE_MS, DEADLINE_MS, SLOTS, USUAL_MS, WORKERS
from loadtests.report.figure import Figure
from loadtests.report.page import table
from loadtests.report.progress import Say
from loadtests.report.result import Block, Result
from services.retrieval.nearest import EXACT_UP_TO

HEAD = """\
Real processes on one machine: a router, retrieval, PostgreSQL and Valkey, and {workers} simulated workers of {slots}
slots. The tenant has {rows:,} chunks, so it is searched through the graph. Questions arrive in an open loop, each with
{top_k} passages, an answer of up to {answer} tokens and a deadline of {deadline:g} s; one in {every} is one of {known}
that are asked again and again, all others are new. Every load meets a new router, and arrives at the same moments for
each ladder.

Three ladders are compared, and nothing else differs: **off** (level 0 for all), **retrieval only** (passages, search
effort, search time and context are cut, the answer never), and **whole**, the router's own. The
[table of levels](../architecture/mechanisms/degradation.md#the-table) says what each cuts.
"""

WORKERS_HEAD = """\
## Where the workers are the bottleneck

One times capacity is {capacity:.1f} answers a second: what the workers were measured to do with whole prompts and whole
answers. "In worth" weighs each answer on time by what its level is held to be worth, in the same table. Most who are
refused are told so at once; "in line" is the share of all for whom time ran out while they waited. Latency is that of
answers, from the moment at which the question should have been sent.
A retrieval may take {budget:g} ms here, so that the processors, which client, services and stores share, decide little.
"""

SLOW_HEAD = """\
## Where the database is slow

The same workers at {load:g} times capacity, the usual budget of {budget:g} ms, and {delay:.0f} ms added to each way
between retrieval and its database: no search ends in time.
"""

RETRIEVAL_HEAD = """\
## Where retrieval is the bottleneck

Workers in plenty, the usual budget, and a load measured by what retrieval can do: {per_s:.1f} new questions a second,
asked by a few clients that wait for their answers, with nothing else at work on the machine. Here the client, the
router, the workers and the database take their part of the same cores.
"""

METHOD = """\
## How it is read

Counted is what arrived after the first seconds, in which a level is found, and before the last one. A source of `db` is
a search, `cache` a kept result, `stale` an old one; `none` means that there was no time for passages, `skipped` that
the level has none. What a level is worth does not ask whether passages came: "with passages" does.
The ladder is priced by the workers' work alone: their load is what makes it rise, and shorter prompts and shorter
answers are what it wins. Retrieval has means of its own against too much work, whatever the level is: its budget, and
[the order of fallbacks](../decisions/033-the-order-of-fallbacks.md). In production a tenant is kept off the ladder with
`degrade: false` in the tenants file. A machine that is busy with other things moves every figure.
"""

LEAST_MB = 0.1
COLUMNS = (
    "Load:", "Ladder", "Offered/s:", "On time/s:", "In worth/s:", "With passages/s:", "Refused:", "In line:", "p50 ms:",
    "p95 ms:", "p99 ms:", "Late:", "Level: share of answers", "Source: share of answers", "Passages:",
)  # fmt: skip
COSTS = ("Level:", "Passages:", "Tokens of context:", "Search effort:", "Embedding, ms:", "Search, ms:")
SIZES = ("Table", "Table or index", "MB:", "MB for each 100,000 chunks:")
SEED = 1

Runs = Mapping[tuple[float, str], Run]


class Options(msgspec.Struct, frozen=True):
    """Of this bench."""

    rows: Annotated[int, msgspec.Meta(ge=EXACT_UP_TO + 1, description="chunks of the tenant, for the graph")] = 30_000
    short: Annotated[bool, msgspec.Meta(description="short loads")] = False


QUICK = {"short": True}


async def measure(options: Options, say: Say) -> Result:
    """With stores, retrieval, workers and routers of its own."""
    return result(await everything(options.rows, SEED, QUICK_LENGTH if options.short else USUAL_LENGTH, say))


def result(measured: Measured) -> Result:
    """As a page; what is answered on time is a figure of each run, for the record."""
    blocks: list[Block] = [
        HEAD.format(
            workers=WORKERS, slots=SLOTS, rows=measured.rows, top_k=TOP_K, answer=ANSWER_TOKENS,
            deadline=DEADLINE_MS / 1000, every=KNOWN_EVERY, known=KNOWN,
        ),
        "What a question costs at each level, one at a time and each a new one, as medians:",
        table(COSTS, map(_cost, measured.costs)),
        WORKERS_HEAD.format(capacity=measured.capacity_per_s, budget=AMPLE_MS), *plots(measured),
        _table(measured.workers), "Beside no ladder at all:", _gains(measured.workers),
        SLOW_HEAD.format(load=SLOW_LOAD, budget=USUAL_MS, delay=SLOW.latency_s * 1000),
        _table(measured.slow), _slow(measured),
        RETRIEVAL_HEAD.format(per_s=measured.retrieval_per_s), _table(measured.retrieval),
        _retrieval(measured.retrieval), METHOD, _warning(measured), *_sizes(measured),
    ]  # fmt: skip
    return Result("What degradation buys under overload", _figures(measured), blocks)


def _figures(measured: Measured) -> dict[str, list[Figure]]:
    sides = {"workers": measured.workers, "slow database": measured.slow, "retrieval": measured.retrieval}
    return {
        name: [
            Figure(f"on time at {load:g} times capacity, ladder {ladder}", run.on_time_per_s, "answers/s")
            for (load, ladder), run in runs.items()
        ]
        for name, runs in sides.items()
    }


def _cost(cost: Cost) -> tuple[str, ...]:
    return (
        str(cost.level), str(cost.passages), f"{cost.context_tokens:.0f}", f"{cost.ef_share:g}",
        f"{cost.embed_ms:.1f}", f"{cost.search_ms:.1f}",
    )  # fmt: skip


def _table(runs: Runs) -> Iterator[str]:
    return table(COLUMNS, (_row(load, ladder, run) for (load, ladder), run in runs.items()))


def _row(load: float, ladder: str, run: Run) -> tuple[str, ...]:
    quantiles = run.answers_ms
    return (
        f"{load:g}", ladder, f"{run.offered_per_s:.1f}", f"{run.on_time_per_s:.1f}", f"{run.worth_per_s:.1f}",
        f"{run.with_passages_per_s:.1f}", f"{run.refused:.0%}", f"{run.expired:.0%}",
        f"{quantiles.p50:.0f}", f"{quantiles.p95:.0f}", f"{quantiles.p99:.0f}", str(run.late_answers),
        shares(run.levels), shares(run.sources), f"{run.passages:.1f}",
    )  # fmt: skip


def shares(of: Mapping[Any, float]) -> str:
    return ", ".join(f"{value}: {share:.0%}" for value, share in of.items())


def _gains(runs: Runs) -> Iterator[str]:
    """In words, load by load."""
    for load in LOADS:
        off, retrieval, whole = (runs[load, name] for name in (OFF, RETRIEVAL, WHOLE))
        yield (
            f"- at {load:g} times capacity, degraded retrieval alone brings {_more(retrieval, off)}; "
            f"the whole ladder {_more(whole, off)}."
        )


def _more(run: Run, than: Run) -> str:
    on_time, worth = (_change(getattr(run, of), getattr(than, of)) for of in ("on_time_per_s", "worth_per_s"))
    return f"{on_time} answers on time, {worth} in worth"


def _change(value: float, before: float) -> str:
    return f"{value / before - 1:+.0%}" if before else "no comparison of"


def _slow(measured: Measured) -> str:
    healthy, slow = measured.workers[SLOW_LOAD, OFF], measured.slow[SLOW_LOAD, OFF]
    return (
        f"Without the ladder {slow.on_time_per_s:.1f}/s are answered on time, and {healthy.on_time_per_s:.1f}/s with a "
        f"healthy database: what a search does not bring is not read by the workers either. Of the answers "
        f"{_without(slow):.0%} have no passages, and say so. Beside that the whole ladder brings "
        f"{_more(measured.slow[SLOW_LOAD, WHOLE], slow)}."
    )


def _retrieval(runs: Runs) -> str:
    load = max(load for load, _ in runs)
    off, whole = runs[load, OFF], runs[load, WHOLE]
    return (
        f"At {load:g} times that rate the mean level with the whole ladder is {_mean_level(whole):.1f}: what keeps "
        f"answers on time is the budget. Without the ladder {off.on_time_per_s / off.offered_per_s:.0%} of the "
        f"questions are answered on time and {_without(off):.0%} of the answers have no passages; with it "
        f"{whole.on_time_per_s / whole.offered_per_s:.0%} and {_without(whole):.0%}."
    )


def _sizes(measured: Measured) -> Iterator[Block]:
    """In the database, and reckoned for a round number of chunks."""
    each = 100_000 / measured.rows
    in_all = sum(taken.mb for taken in measured.taken)
    rows = [
        (taken.of_table, taken.name, f"{taken.mb:.1f}", f"{taken.mb * each:.0f}")
        for taken in measured.taken
        if taken.mb >= LEAST_MB
    ]
    yield "## What the chunks take"
    yield f"{measured.rows:,} chunks of {CHUNK_WORDS} words, {CHUNKS_PER_DOCUMENT} to a document, after VACUUM."
    yield table(SIZES, [*rows, ("all", "", f"{in_all:.1f}", f"{in_all * each:.0f}")])


def _without(run: Run) -> float:
    """The share of answers for which nothing was found."""
    return sum(share for source, share in run.sources.items() if source in ("none", "skipped"))


def _mean_level(run: Run) -> float:
    return sum(level * share for level, share in run.levels.items())


def _warning(measured: Measured) -> str:
    runs = [*measured.workers.values(), *measured.slow.values(), *measured.retrieval.values()]
    late, failed = max(run.generator_late for run in runs), max(run.failed for run in runs)
    return (
        f"In the worst run {late:.1%} of the questions left more than 20 ms late, and {failed:.1%} ended neither in an "
        "answer nor in a refusal."
    )
