"""What the page says in words of its own must be what the router does: it cannot import it, so this compares."""

from __future__ import annotations

import re
from pathlib import Path

from services.core.ladder import LADDER
from services.core.outcome import Ending, Outcome

STATIC = Path(__file__).parents[2] / "services" / "console" / "static"
WORDS = (STATIC / "words.js").read_text()
AT_THE_DOOR = {outcome.value for outcome in Outcome if outcome.ending is Ending.REJECTED}
MISTAKES = {Outcome.BAD_INPUT.value, Outcome.MODEL_NOT_FOUND.value}  # the client's own; nobody is turned away by load


def block(name: str) -> str:
    found = re.search(rf"export const {name} = (?:\{{|\[)(.*?)\n?(?:\}}|\]);", WORDS, re.DOTALL)
    assert found is not None, name
    return found[1]


def test_the_ladder_on_the_page_is_the_ladder_of_the_router() -> None:
    shares = re.findall(r"depth: ([\d.]+), context: ([\d.]+), answer: ([\d.]+)", block("LADDER"))
    told = [tuple(float(share) for share in rung) for rung in shares]
    assert told == [(level.retrieval_depth_share, level.context_share, level.max_tokens_share) for level in LADDER]


def test_every_refusal_by_load_has_its_word() -> None:
    assert set(re.findall(r"^  (\w+):", block("REFUSALS"), re.MULTILINE)) == AT_THE_DOOR - MISTAKES


def test_what_was_let_in_and_not_answered_is_late_or_left() -> None:
    late = set(re.findall(r'"(\w+)"', block("LATE")))
    lost = set(re.findall(r'"(\w+)"', block("LOST")))
    assert late | {"client_gone"} == {o.value for o in Outcome if o.ending in (Ending.EVICTED, Ending.FAILED)}
    assert lost == {o.value for o in Outcome if o.ending is Ending.FAILED}


def test_no_file_of_the_page_names_another_host_or_breaks_its_policy() -> None:
    own = [path for path in STATIC.iterdir() if path.suffix in (".js", ".css", ".html") and "uPlot" not in path.name]
    assert len(own) > 20
    for path in own:
        text = path.read_text().replace("http://www.w3.org/2000/svg", "")
        for banned in ("http://", "https://", "innerHTML", "@import"):
            assert banned not in text, path.name
    page = (STATIC / "index.html").read_text()
    assert " style=" not in page
    assert "<style" not in page
    assert not re.search(r"<script(?![^>]*\bsrc=)", page)


def test_the_charting_library_keeps_its_licence() -> None:
    assert "The MIT License" in (STATIC / "uPlot.LICENSE.txt").read_text()
    assert "leeoniya/uPlot" in (STATIC / "uPlot.iife.min.js").read_text()[:300]
