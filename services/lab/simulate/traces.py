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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
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


def read(path: Path, kind: TraceFormat) -> Sequence[Row]:
    """All rows in order of time. LabError names the request that is wrong."""
    return _read(path, kind, path.stat().st_mtime_ns)


@lru_cache(maxsize=4)
def _read(path: Path, kind: TraceFormat, _: int) -> Sequence[Row]:
    """Kept for the next run over the same file, as long as it stays the same."""
    with path.open(encoding="utf-8-sig", newline="") as lines:
        rows = sorted(_rows(path, lines, kind))
    if not rows:
        raise LabError(f"{path} has no requests in it.")
    start = rows[0].at_s
    return tuple(Row(at_s - start, client, prompt, answer) for at_s, client, prompt, answer in rows)


def _rows(path: Path, lines: Iterable[str], kind: TraceFormat) -> Iterator[Row]:
    columns = FORMATS[kind]
    rows = _json(lines, columns) if kind == "mooncake" else _csv(lines, columns)
    number = 0
    try:
        for number, row in enumerate(rows, 1):
            if number > MOST_ROWS:
                raise LabError(f"{path} has more than {MOST_ROWS:,} requests.")
            yield row
    except (IndexError, KeyError, TypeError, ValueError, csv.Error) as error:
        raise LabError(f"{path}: request {number + 1} is not of format {kind}: {error!r}.") from None


def _row(at: str, client: str, prompt: str, completion: str, unit_s: float) -> Row:
    prompt_tokens, completion_tokens = int(float(prompt)) or 1, int(float(completion)) or 1
    if min(prompt_tokens, completion_tokens) < 0:
        raise ValueError("tokens below 0")
    return Row(_seconds(at) * unit_s, client.strip().replace(" ", "_"), prompt_tokens, completion_tokens)


def _csv(lines: Iterable[str], columns: Columns) -> Iterator[Row]:
    records = csv.reader(lines)
    header = [name.strip().lower() for name in next(records, [])]
    if not header:
        return
    at, prompt, completion = (header.index(name) for name in (columns.at, columns.prompt, columns.completion))
    client = header.index(columns.client) if columns.client else None
    for record in records:
        if record:
            who = "" if client is None else record[client]
            yield _row(record[at], who, record[prompt], record[completion], columns.unit_s)


def _json(lines: Iterable[str], columns: Columns) -> Iterator[Row]:
    for line in lines:
        if line.strip():
            record = json.loads(line)
            yield _row(record[columns.at], "", record[columns.prompt], record[columns.completion], columns.unit_s)


def _seconds(value: str | float) -> float:
    """A number of seconds, or a date and time (digits beyond microseconds are dropped)."""
    try:
        return float(value)
    except ValueError:
        moment = datetime.fromisoformat(str(value).strip()[:26])
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
