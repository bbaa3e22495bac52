"""`docs/check.py`: what it finds in a small repository of documents, and what it leaves alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CHECK = Path(__file__).parents[3] / "docs" / "check.py"
RECORD = """\
# 001: One line

State: accepted

Date: 2026-11-22

## Context
It has to be decided.

## Decision
So.

## Consequences
Good ones.

## Alternatives
None.

## Enforced by
`tests/test_line.py`: `test_there_is_one_line`.
"""
ROW = "| [001](001-one-line.md) | One line | accepted | 2026-11-22 |\n"
INDEX = f"| number | decision | state | date |\n|---|---|---|---|\n{ROW}"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """One in which everything that is named is there."""
    for name, text in {
        "README.md": "# Here\nSee [there](docs/there.md#a-heading), `tests/test_line.py` and `make up`.\n",
        "docs/there.md": "# There\n## A heading\nA sentence.\n",
        "docs/decisions/README.md": INDEX,
        "docs/decisions/001-one-line.md": RECORD,
        "tests/test_line.py": "def test_there_is_one_line():\n    pass\n",
        "services/router/app.py": "",
        "Makefile": "up:\n\ttrue\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def faults(root: Path) -> list[str]:
    run = subprocess.run([sys.executable, CHECK, root], capture_output=True, text=True, check=False)
    assert run.returncode == bool(run.stderr), run.stderr
    return run.stderr.splitlines()


def page(root: Path, text: str) -> list[str]:
    (root / "docs" / "page.md").write_text(text)
    return faults(root)


def test_a_repository_whose_names_all_exist_has_no_fault(repository: Path) -> None:
    assert faults(repository) == []


@pytest.mark.parametrize(
    "text",
    [
        "[a](there.md) [b](there.md#a-heading) [c](there.md#a-heading-1) [d](#page)",
        "[a](https://example.org/x#y) [b](mailto:a@example.org)",
        "`[a](nowhere.md)`",
        "```text\n[a](nowhere.md)\n```",
    ],
)
def test_a_link_that_resolves_is_no_fault(repository: Path, text: str) -> None:
    (repository / "docs" / "there.md").write_text("# There\n\n## A `heading`\n\n## A heading\n")
    assert page(repository, f"# Page\n\n{text}\n") == []


def test_a_setting_that_nothing_explains_is_a_fault(repository: Path) -> None:
    example = "# port of the router\nROUTER_PORT=8000\n\nHOST=127.0.0.1\nLOG_LEVEL=INFO  # least level\n"
    (repository / ".env.example").write_text(example)
    assert faults(repository) == [".env.example:4: HOST: no line says what it means"]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("[gone](nowhere.md)", "no such file"),
        ("![gone](picture.png)", "no such file"),
        ('<img src="picture.png">', "no such file"),
        ("[gone](../../etc/passwd)", "outside the repository"),
        ("[gone](#nowhere)", "no heading #nowhere"),
        ("[gone](there.md#no-such-heading)", "no heading #no-such-heading"),
        ("`tests/test_gone.py`", "`tests/test_gone.py`"),
        ("`services/router/gone.py` ", "`services/router/gone.py`"),
        ("`router/gone.py`", "`router/gone.py`"),
        ("`gone.py`", "`gone.py`"),
        ("`test_nobody_wrote_this`", "`test_nobody_wrote_this`"),
        ("Run `make coffee`.", "no verb `make coffee`"),
        ("```console\n$ make coffee\n```", "no verb `make coffee`"),
        ("`python -m loadtests.bench.gone`", "no module loadtests.bench.gone"),
    ],
)
def test_what_a_page_names_and_nobody_finds_is_a_fault_with_its_line(repository: Path, text: str, fault: str) -> None:
    (told,) = page(repository, f"# Page\n\n{text}\n")
    assert fault in told
    assert told.startswith(("docs/page.md:3:", "docs/page.md:4:"))


@pytest.mark.parametrize(
    "text",
    [
        "`router/app.py`, `services/router/`, `app.py`, `test_there_is_one_line`",
        "`application/json`, `batch/interactive`, `PUT /documents/{id}`, `gpt-4/turbo`",
        "```text\nservices/router/gone.py and `gone.py`\n```",
        "<https://example.org/gone.py> and [a site](https://example.org)",
    ],
)
def test_what_exists_or_is_no_name_of_ours_is_none(repository: Path, text: str) -> None:
    assert page(repository, f"# Page\n\n{text}\n") == []


def test_the_changelog_may_tell_of_what_is_gone(repository: Path) -> None:
    (repository / "docs" / "changelog.md").write_text("# Changelog\n`services/router/gone.py` is gone.\n")
    assert faults(repository) == []


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("# 001: One line", "# 001: Two lines", "the index calls it"),
        ("State: accepted", "State: proposed", "its state is 'proposed', and 'accepted' in the index"),
        ("Date: 2026-11-22", "Date: 2026-11-23", "its date is 2026-11-23"),
        ("Date: 2026-11-22", "Date: a day in November", "says no date"),
        ("## Alternatives\n", "## Others\n", "'Alternatives'"),
        ("## Decision\nSo.", "## Decision **So**", "'Decision'"),
        ("`tests/test_line.py`: `test_there_is_one_line`.", "Good will.", "names no test"),
        ("Good ones.", "\n" * 90, "is one page"),
    ],
)
def test_a_record_says_what_every_record_says(repository: Path, old: str, new: str, fault: str) -> None:
    record = repository / "docs" / "decisions" / "001-one-line.md"
    record.write_text(RECORD.replace(old, new))
    (told,) = faults(repository)
    assert told.startswith("docs/decisions/001-one-line.md: ")
    assert fault in told


def test_the_index_has_every_record_and_no_other(repository: Path) -> None:
    decisions = repository / "docs" / "decisions"
    (decisions / "001-one-line.md").rename(decisions / "002-one-line.md")
    told = "\n".join(faults(repository))
    assert "002-one-line.md: is not in the index" in told
    assert "001-one-line.md: the index has it, the folder has not" in told


def test_a_state_is_one_of_those_that_there_are(repository: Path) -> None:
    for path in (repository / "docs" / "decisions").iterdir():
        path.write_text(path.read_text().replace("accepted", "replaced"))
    assert faults(repository) == ["docs/decisions/001-one-line.md: its state is 'replaced', which is none"]


def test_a_record_and_the_one_that_changes_it_name_each_other(repository: Path) -> None:
    decisions = repository / "docs" / "decisions"
    second = RECORD.replace("001", "002").replace("## Context", "Changes: [001](001-one-line.md)\n\n## Context")
    (decisions / "002-another.md").write_text(second)
    (decisions / "README.md").write_text(INDEX + ROW.replace("001", "002").replace("one-line", "another"))
    assert faults(repository) == ["docs/decisions/001: its state does not name 002, which changes it"]
    for path in (decisions / "README.md", decisions / "001-one-line.md"):
        path.write_text(path.read_text().replace("accepted", "superseded by [002](002-another.md)", 1))
    assert faults(repository) == []
    (decisions / "002-another.md").write_text(RECORD.replace("001", "002"))
    assert faults(repository) == ["docs/decisions/002: does not say that it changes 001, whose state names it"]


def test_a_page_of_results_that_its_index_does_not_link_is_a_fault(repository: Path) -> None:
    results = repository / "docs" / "results"
    results.mkdir()
    (results / "README.md").write_text("# Results\n[fire](fire.md)\n")
    for name in ("fire.md", "soak.md"):
        (results / name).write_text("# A page\n")
    assert faults(repository) == ["docs/results/soak.md: is not in README.md beside it"]


def test_a_record_stands_under_one_subject(repository: Path) -> None:
    index = repository / "docs" / "decisions" / "README.md"
    table = "\n| subject | records |\n|---|---|\n| lines | {} |\n| others | 002 |\n"
    index.write_text(INDEX + table.format("001"))
    assert faults(repository) == []
    index.write_text(INDEX + table.format("003"))
    assert faults(repository) == ["docs/decisions/README.md: 001 stands under 0 subjects"]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("flowchat LR\n  a --> b", "begins with one of"),
        ("flowchart LR\n  a --> b[open", "bracket without its pair"),
        ("flowchart LR\n  a --> b[what (it) is]", "needs quotation marks"),
        ('flowchart LR\n  a --> b["half]', "quotation mark"),
        ("flowchart LR\n  a --> end", "`end`"),
        ("flowchart LR\n  subgraph x\n  a --> b", "without its `end`"),
        ("sequenceDiagram\n  A->>B: this; that", "semicolon"),
    ],
)
def test_a_diagram_that_would_not_be_drawn_is_a_fault(repository: Path, text: str, fault: str) -> None:
    (told,) = page(repository, f"# Page\n\n```mermaid\n{text}\n```\n")
    assert fault in told


@pytest.mark.parametrize(
    "text",
    [
        'flowchart LR\n  a(["round (and quoted)"]) -- "no: 429" --> b{"x?"}\n  b -. later .-> c[("store")] & d',
        "flowchart TD\n  subgraph x\n    direction LR\n    a --> b\n  end\n  x --> ending",
        "erDiagram\n  a ||--o{ b : has\n  a {\n    text id PK\n  }",
        "sequenceDiagram\n  A->>B: drop C, admit E\n  alt full\n    B-->>A: no\n  end",
        "stateDiagram-v2\n  [*] --> waiting\n  waiting --> [*]",
    ],
)
def test_one_that_is_drawn_is_none(repository: Path, text: str) -> None:
    assert page(repository, f"# Page\n\n```mermaid\n{text}\n```\n") == []


def test_a_diagram_that_is_never_closed_is_a_fault(repository: Path) -> None:
    (told,) = page(repository, "# Page\n\n```mermaid\nflowchart LR\n  a --> b\n")
    assert "never closed" in told
