"""The page docs/results/hybrid.md."""

from __future__ import annotations

from collections.abc import Sequence

from loadtests.bench.hybrid.cost import TOP_K, Cost
from loadtests.bench.hybrid.measure import FIRST, LOOKED_AT, Places, Question

METHOD = """\
Questions to Weir's own documents, written by hand (`bench/hybrid/questions.yaml`): natural ones, which mostly avoid the
words of their answer, and ones that ask for a name or a number. MRR is the mean of 1 / place of the first passage that
answers, over the first {looked_at} passages; recall is the share of questions that have it among the first {first}.
There are {documents} documents of {chunks} chunks, and {questions} questions: one more or one less is
{step:.1%} of its kind.
"""
COST = """\
Milliseconds of the server's processor, the median of a search for {top_k} passages among {rows:,} chunks of one tenant,
with the words and without, in turn over one connection. The texts are those of the documents, over and over.
"""


def page(
    places: Sequence[Places],
    questions: Sequence[Question],
    costs: Sequence[Cost],
    sizes: tuple[int, int, int],
    where: str,
) -> str:
    """The whole page; `sizes` are documents, chunks, and rows of the measurement of costs."""
    kinds = list(dict.fromkeys(each.kind for each in places))
    documents, chunks, rows = sizes
    lines = ["# Ranking by meaning and by words", "", f"Written by `python -m loadtests.bench.hybrid`, on {where}.", ""]
    method = METHOD.format(
        looked_at=LOOKED_AT, first=FIRST, documents=documents, chunks=chunks, questions=len(questions),
        step=len(kinds) / len(questions),
    )  # fmt: skip
    lines += [method, "| questions | ranked by | MRR@10 | recall@5 |", "|---|---|---:|---:|"]
    lines += [f"| {each.kind} | {each.way} | {each.mrr:.3f} | {each.recall:.0%} |" for each in places]
    lines += ["", "## Where the words harm", "", "Questions whose answer stands lower for the words, or is lost:", ""]
    lines += ["| asked | place by vectors | by both |", "|---|---:|---:|", *_harmed(places, questions, kinds)]
    lines += ["", "## What they cost", "", COST.format(top_k=TOP_K, rows=rows)]
    lines += ["| searched | asked for | by vectors | by both | ratio |", "|---|---|---:|---:|---:|"]
    lines += [_cost(each) for each in costs]
    return "\n".join(lines) + "\n"


def _harmed(places: Sequence[Places], questions: Sequence[Question], kinds: Sequence[str]) -> list[str]:
    found = {(each.way, each.kind): each.places for each in places}
    lines = []
    for kind in kinds:
        asked = [each.asked for each in questions if each.kind == kind]
        for question, alone, both in zip(asked, found["vectors", kind], found["both", kind], strict=True):
            if alone and (not both or both > alone):
                lines.append(f"| {question} | {alone} | {both or f'over {LOOKED_AT}'} |")
    return lines


def _cost(cost: Cost) -> str:
    ratio = cost.with_words_ms / cost.alone_ms
    return f"| {cost.way} | {cost.asked} | {cost.alone_ms:.1f} | {cost.with_words_ms:.1f} | {ratio:.2f} |"
