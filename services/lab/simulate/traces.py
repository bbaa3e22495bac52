"""Recorded traffic: one row a request, in the formats that are in use. A trace is read whole, then replayed.

azure      CSV   TIMESTAMP, ContextTokens, GeneratedTokens (Azure LLM inference traces, 2023 and 2024)
servegen   CSV   t_s, client, input_tokens, output_tokens (drawn from ServeGen's client data)
burstgpt   CSV   Timestamp (s), Model, Request tokens, Response tokens, ...; a model stands for a client
mooncake   JSONL timestamp (ms), input_length, output_length
vtc        CSV   req_time, client, prompt_len, output_len (the LMSYS replay of VTC)
splitwise  CSV   arrived_at, num_prefill_tokens, num_decode_tokens (the same Azure trace as vidur ships it)
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from services.lab.errors import LabError
from services.lab.simulate.arrivals import TraceFormat

MOST_ROWS = 5_000_000


class Row(NamedTuple):
    """One request of a trace; the first one is at 0 s."""

    at_s: float
    client: str
    prompt_tokens: int
    completion_tokens: int


class Columns(NamedTuple):
    """What a format calls them, in lower case."""

    at: str
    client: str
    prompt: str
    completion: str
    unit_s: float = 1.0


FORMATS: Mapping[TraceFormat, Columns] = {
    "azure": Columns("timestamp", "", "contexttokens", "generatedtokens"),
    "servegen": Columns("t_s", "client", "input_tokens", "output_tokens"),
    "burstgpt": Columns("timestamp", "model", "request tokens", "response tokens"),
    "mooncake": Columns("timestamp", "", "input_length", "output_length", unit_s=0.001),
    "vtc": Columns("req_time", "client", "prompt_len", "output_len"),
    "splitwise": Columns("arrived_at", "", "num_prefill_tokens", "num_decode_tokens"),
}


def read(path: Path, kind: TraceFormat) -> list[Row]:
    """All rows in order of time. LabError names the line that is wrong."""
    with path.open(encoding="utf-8-sig", newline="") as lines:
        rows = sorted(_rows(path, lines, kind))
    if not rows:
        raise LabError(f"{path} has no requests in it.")
    start = rows[0].at_s
    return [row._replace(at_s=row.at_s - start) for row in rows]


def _rows(path: Path, lines: Iterable[str], kind: TraceFormat) -> Iterator[Row]:
    columns = FORMATS[kind]
    records = _json(lines) if kind == "mooncake" else _csv(lines)
    number = 0
    try:
        for number, record in enumerate(records, 1):
            if number > MOST_ROWS:
                raise LabError(f"{path} has more than {MOST_ROWS:,} requests.")
            yield _row(record, columns)
    except (KeyError, TypeError, ValueError, csv.Error) as error:
        raise LabError(f"{path}: request {number or 1} is not of format {kind}: {error!r}.") from None


def _row(record: Mapping[str, str], columns: Columns) -> Row:
    at_s = _seconds(record[columns.at]) * columns.unit_s
    client = str(record[columns.client]).strip().replace(" ", "_") if columns.client else ""
    prompt, completion = int(float(record[columns.prompt])), int(float(record[columns.completion]))
    return Row(at_s, client, max(1, prompt), max(1, completion))


def _csv(lines: Iterable[str]) -> Iterator[Mapping[str, str]]:
    records = csv.reader(lines)
    header = [name.strip().lower() for name in next(records, [])]
    yield from (dict(zip(header, record, strict=True)) for record in records if record)


def _json(lines: Iterable[str]) -> Iterator[Mapping[str, str]]:
    yield from (json.loads(line) for line in lines if line.strip())


def _seconds(value: str | float) -> float:
    """A number of seconds, or a date and time (digits beyond microseconds are dropped)."""
    try:
        return float(value)
    except ValueError:
        moment = datetime.fromisoformat(str(value).strip()[:26])
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
