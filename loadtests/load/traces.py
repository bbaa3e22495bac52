"""Recorded traffic, one row per request, for the simulator and the open loop.

azure      CSV   TIMESTAMP, ContextTokens, GeneratedTokens (Azure LLM inference traces, 2023 and 2024)
servegen   CSV   t_s, client, input_tokens, output_tokens (drawn from ServeGen's client data)
burstgpt   CSV   Timestamp (s), Model, Request tokens, Response tokens, ...; a model stands for a client
bailian    JSONL chat_id, timestamp (s), input_length, output_length, type (Qwen on Bailian); a type stands for a client
mooncake   JSONL timestamp (ms), input_length, output_length
vtc        CSV   req_time, client, prompt_len, output_len (the LMSYS replay of VTC)
splitwise  CSV   arrived_at, num_prefill_tokens, num_decode_tokens (the same Azure trace as vidur ships it)

The columns identify the format. BurstGPT records 0 answer tokens for a failed request; it is replayed with one. Some
files have 27 million rows, so a part can be read: earlier rows are skipped and reading stops after the part. This
requires rows in order of time; rows up to `DISORDER_S` out of place are sorted.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from math import inf
from pathlib import Path
from typing import Literal, NamedTuple

from services.cli.errors import LabError

TraceFormat = Literal["azure", "servegen", "burstgpt", "bailian", "mooncake", "vtc", "splitwise"]
MAX_ROWS = 5_000_000
DISORDER_S = 60.0
_BEYOND_MICROSECONDS = re.compile(r"(\.\d{6})\d+")


class Row(NamedTuple):
    """One request, `at_s` seconds after the begin of the part; a trace begins with its first request."""

    at_s: float
    client: str
    prompt_tokens: int
    completion_tokens: int


class Part(NamedTuple):
    """A trace or part of it in order of time, and its period when repeated."""

    rows: Sequence[Row]
    period_s: float

    @property
    def per_s(self) -> float:
        return len(self.rows) / self.period_s


class Columns(NamedTuple):
    """A format's column names in lower case. A file without a client column has one client."""

    at: str
    client: str
    prompt: str
    completion: str
    unit_s: float = 1.0
    json: bool = False
    mark: str = ""
    """A column that distinguishes it from the formats after it."""


FORMATS: Mapping[TraceFormat, Columns] = {
    "azure": Columns("timestamp", "", "contexttokens", "generatedtokens"),
    "servegen": Columns("t_s", "client", "input_tokens", "output_tokens"),
    "burstgpt": Columns("timestamp", "model", "request tokens", "response tokens"),
    "bailian": Columns("timestamp", "type", "input_length", "output_length", json=True, mark="chat_id"),
    "mooncake": Columns("timestamp", "", "input_length", "output_length", unit_s=0.001, json=True),
    "vtc": Columns("req_time", "client", "prompt_len", "output_len"),
    "splitwise": Columns("arrived_at", "", "num_prefill_tokens", "num_decode_tokens"),
}


def read(path: Path, kind: TraceFormat | None = None, start_s: float = 0.0, length_s: float = inf) -> Part:
    """Read a part of a trace. Raises LabError with the reason and the number of the faulty request."""
    try:
        return _read(path, kind or kind_of(path), start_s, length_s, path.stat().st_mtime_ns)
    except OSError as error:
        raise LabError(f"{path}: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise LabError(f"{path} is not text.") from None


def kind_of(path: Path) -> TraceFormat:
    """The format, identified by the columns of the first line."""
    with path.open(encoding="utf-8-sig", newline="") as lines:
        first = next((line for line in lines if line.strip()), "")
    names = _names(first)
    for kind, columns in FORMATS.items():
        if {columns.at, columns.prompt, columns.completion, columns.mark or columns.at} <= names:
            return kind
    raise LabError(f"{path} is of no format that is known: {', '.join(FORMATS)} are.")


def _names(first: str) -> set[str]:
    if first.lstrip().startswith("{"):
        try:
            return set(json.loads(first))
        except ValueError:
            return set()
    return {name.strip().lower() for name in next(csv.reader([first]), [])}


@lru_cache(maxsize=4)
def _read(path: Path, kind: TraceFormat, start_s: float, length_s: float, _: int) -> Part:
    """Cached for the next run while the file is unchanged."""
    with path.open(encoding="utf-8-sig", newline="") as lines:
        first_s, near = _near(path, _rows(path, lines, kind), start_s, start_s + length_s)
    begin_s = first_s + start_s
    rows = [Row(row.at_s - begin_s, *row[1:]) for row in sorted(near) if row.at_s >= begin_s]
    part = tuple(row for row in rows if row.at_s < length_s)
    if not part:
        raise LabError(f"{path} has no requests in it." if first_s == inf else f"{path} has none in this part of it.")
    goes_on = len(part) < len(rows)
    return Part(part, length_s if goes_on else min(length_s, _to_the_end_s(part)))


def _to_the_end_s(rows: Sequence[Row]) -> float:
    """Seconds to the last request, plus one mean gap."""
    last_s, gaps = rows[-1].at_s, len(rows) - 1
    mean_gap_s = (last_s - rows[0].at_s) / gaps if gaps else 1.0
    return last_s + mean_gap_s or 1.0


def _near(path: Path, rows: Iterator[Row], start_s: float, end_s: float) -> tuple[float, list[Row]]:
    """The time of the trace's first request, and the rows of the part with some before it and at least one after."""
    first_s, kept = inf, []
    for row in rows:
        first_s = min(first_s, row.at_s)
        after_s = row.at_s - first_s
        if after_s >= start_s - DISORDER_S:
            kept.append(row)
            if len(kept) > MAX_ROWS:
                raise LabError(f"{path} has more than {MAX_ROWS:,} requests in this part: take a shorter one.")
        if after_s > end_s + DISORDER_S:
            break
    return first_s, kept


def _rows(path: Path, lines: Iterable[str], kind: TraceFormat) -> Iterator[Row]:
    columns = FORMATS[kind]
    rows = _json(lines, columns) if columns.json else _csv(lines, columns)
    number = 1
    try:
        for row in rows:
            yield row
            number += 1
    except (AttributeError, IndexError, KeyError, TypeError, ValueError, csv.Error) as error:
        raise LabError(f"{path}: request {number} is not of format {kind}: {error!r}.") from None


def _row(at: str | float, client: str, prompt: str | float, completion: str | float, unit_s: float) -> Row:
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
    client = header.index(columns.client) if columns.client in header else None
    for record in records:
        if record:
            who = "" if client is None else record[client]
            yield _row(record[at], who, record[prompt], record[completion], columns.unit_s)


def _json(lines: Iterable[str], columns: Columns) -> Iterator[Row]:
    for line in lines:
        if line.strip():
            record = json.loads(line)
            who = str(record.get(columns.client, ""))
            yield _row(record[columns.at], who, record[columns.prompt], record[columns.completion], columns.unit_s)


def _seconds(value: str | float) -> float:
    """A finite number of seconds from a number or a date and time; UTC if it has no zone."""
    try:
        seconds = float(value)
    except ValueError:
        moment = datetime.fromisoformat(_BEYOND_MICROSECONDS.sub(r"\1", str(value).strip()))
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    if not -inf < seconds < inf:
        raise ValueError(f"{value!r} is not a time")
    return seconds


def replayed(part: Part, speed: float, *, repeat: bool) -> Iterator[tuple[float, Row]]:
    """(second of the run, request), at `speed` times the recorded speed; endless if `repeat`."""
    shift_s = 0.0
    while True:
        for row in part.rows:
            yield (row.at_s + shift_s) / speed, row
        if not repeat:
            return
        shift_s += part.period_s
