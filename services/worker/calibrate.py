"""`weir worker calibrate`: measure the engine of the settings and print the simulated engine's settings for its speed.

It steps the engine with 1, 2, 4 ... decoding sequences, and with prompts of several lengths, alone and beside decoding
sequences. The fit uses the duration, batch size and prefill tokens of each step. It does not cover attention over long
contexts or the first steps of a new size.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from services.contracts.generate import GenerateRequest
from services.runtime.errors import BadInput
from services.runtime.settings import NO_LISTENER, load
from services.runtime.starting import CannotStart
from services.worker.app import engine as engine_of
from services.worker.config import WorkerSettings
from services.worker.engine import Engine
from services.worker.engine import Sequence as Running
from services.worker.fitting import CannotFit, Fit, Kind, fit, typical

DEFAULT_REPEATS = 9
TRIAL_WORDS = 16
WRITER_WORDS = 4
WRITER_TOKENS = 64
WRITTEN_STEPS = 3
SHORTEST_PROMPT_TOKENS = 16
LONGEST_PROMPT_TOKENS = 512
MEASURED_CHUNK_TOKENS = 256
WARM_UP_ROUNDS = 1  # the first step of a size may initialize things
EXIT_CANNOT_FIT = 1
HEADER = "# The simulated engine's speed"
Clock = Callable[[], float]
WORDS = ("water", "gate", "level", "lock", "river")


@dataclass(frozen=True, slots=True)
class EngineCalibration:
    """An engine's measured speed, and the engine's name."""

    fit: Fit
    steps: int
    engine: str
    model: str

    def settings(self, *, device: str, date: str) -> str:
        fit = self.fit
        return (
            f"{HEADER}, as measured on {date} by `weir worker calibrate`:\n"
            f"# engine {self.engine}, model {_one_line(self.model)}, device {_one_line(device)}.\n"
            f"# {self.steps} steps of {fit.kinds} kinds; R squared {fit.r_squared:.4f}, "
            f"the worst typical step is off by {fit.worst_residual:.1%}.\n"
            f"SIM_STEP_MS={fit.step_ms:.4g}\n"
            f"SIM_STEP_PER_SEQUENCE_MS={fit.per_sequence_ms:.4g}\n"
            f"SIM_PREFILL_MS_PER_TOKEN={fit.prefill_ms_per_token:.4g}\n"
        )


def calibrate(engine: Engine, *, repeats: int = DEFAULT_REPEATS, clock: Clock | None = None) -> EngineCalibration:
    """Measure an engine that has no other user; it is left empty. Raises CannotFit.

    With a `clock`, step durations are measured in its seconds instead of taken from `Step.duration_s`.
    """
    bench = _Bench(engine, clock)
    for _ in range(WARM_UP_ROUNDS):
        bench.round()
    bench.samples_ms.clear()
    for _ in range(repeats):  # by rounds, so that a disturbance affects each kind of step a little, not one kind a lot
        bench.round()
    found = fit(typical(bench.samples_ms))
    return EngineCalibration(found, sum(map(len, bench.samples_ms.values())), engine.name, engine.model)


class _Bench:
    """An engine and its measured steps, in ms by kind."""

    def __init__(self, engine: Engine, clock: Clock | None) -> None:
        self.engine = engine
        self.samples_ms: defaultdict[Kind, list[float]] = defaultdict(list)
        self._clock = clock
        try:
            self._tokens_per_word = engine.prepare(self._request(TRIAL_WORDS, 1)).prompt_tokens / TRIAL_WORDS
        except BadInput as error:
            raise CannotFit(f"this engine's context is too short to measure it: {error}") from None

    def round(self) -> None:
        for count in powers_of_two(1, self.engine.slots):
            self._write(count)
        room = min(LONGEST_PROMPT_TOKENS, self.engine.context_tokens // 2)
        for beside in sorted({0, self.engine.slots // 2}):
            for tokens in powers_of_two(SHORTEST_PROMPT_TOKENS, room):
                self._read(max(1, int(tokens / self._tokens_per_word)), beside)

    def _write(self, count: int) -> None:
        running = self._admit_writers(count)
        while any(sequence.unread_tokens for sequence in running):
            self._step()
        for _ in range(WRITTEN_STEPS if running else 0):
            self._step()
        self._drop(running)

    def _read(self, words: int, beside: int) -> None:
        running = self._admit_writers(beside)
        while any(sequence.unread_tokens for sequence in running):
            self._step()
        prompt = self._admit(words, 1)
        while prompt is not None and prompt.unread_tokens:
            self._step()
        self._drop([*running, *([prompt] if prompt else [])])

    def _admit_writers(self, count: int) -> list[Running]:
        """At most `count` sequences, as many as fit. They decode throughout the measurement if memory allows."""
        writers = (self._admit(WRITER_WORDS, WRITER_TOKENS) for _ in range(count))
        return [writer for writer in writers if writer is not None]

    def _admit(self, words: int, max_tokens: int) -> Running | None:
        highest = self.engine.context_tokens - math.ceil(words * self._tokens_per_word) - 8
        try:
            sequence = self.engine.prepare(self._request(words, max(1, min(max_tokens, highest))))
            self.engine.admit(sequence)
        except (BadInput, RuntimeError):
            return None
        return sequence

    def _step(self) -> None:
        began = self._clock() if self._clock else 0.0
        step = self.engine.step()
        if step.lost:
            raise CannotFit("the engine ran out of memory on the way: lower MAX_BATCH_SIZE or KV_TOKENS")
        duration_s = self._clock() - began if self._clock else step.duration_s
        self.samples_ms[step.batch_size, step.prefill_tokens].append(duration_s * 1000)

    def _drop(self, sequences: Sequence[Running]) -> None:
        for sequence in sequences:
            self.engine.drop(sequence)

    def _request(self, words: int, max_tokens: int) -> GenerateRequest:
        prompt = " ".join(WORDS[number % len(WORDS)] for number in range(words))
        return GenerateRequest(
            id="calibration", tenant="weir", deadline_ms=1, max_tokens=max_tokens, prompt=prompt, temperature=0.0,
            seed=0, ignore_eos=True,
        )  # fmt: skip


def powers_of_two(lowest: int, highest: int) -> Iterator[int]:
    """`lowest`, twice that, and so on, then `highest`."""
    while lowest < highest:
        yield lowest
        lowest *= 2
    yield highest


def write(path: Path, text: str) -> None:
    """Replace the file atomically: write another file, then rename it."""
    with tempfile.NamedTemporaryFile(
        "w", dir=path.parent, prefix=f".{path.name}.", encoding="utf-8", delete=False
    ) as new:
        new.write(text)
    os.replace(new.name, path)


def main(words: Sequence[str] | None = None) -> int:
    """The command. Settings come from the environment, as for the worker. Returns the exit status."""
    arguments = _arguments(words)
    settings = load(WorkerSettings, **NO_LISTENER)
    try:
        engine = engine_of(for_measurement(settings))
        try:
            clock = time.process_time if arguments.processor_time else None
            measured = calibrate(engine, repeats=arguments.repeats, clock=clock)
        finally:
            engine.close()
    except CannotStart as error:
        sys.stderr.write(f"calibrate: {error}\n")
        return error.exit_status
    except CannotFit as error:
        sys.stderr.write(f"calibrate: nothing was written: {error}\n")
        return EXIT_CANNOT_FIT
    device = settings.device if settings.engine == "torch" else "none"
    text = measured.settings(device=device, date=datetime.now(UTC).date().isoformat())
    if arguments.write is None:
        sys.stdout.write(text)
    else:
        write(arguments.write, text)
    return 0


def for_measurement(settings: WorkerSettings) -> WorkerSettings:
    """Use long chunks if the settings choose none: the cost of prefill shows in steps with many prompt tokens."""
    return settings.model_copy(update={"prefill_chunk_tokens": settings.prefill_chunk_tokens or MEASURED_CHUNK_TOKENS})


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="weir worker calibrate", description="Measure the engine of the settings.")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the settings there instead of printing them")
    parser.add_argument(
        "--repeats", type=int, default=DEFAULT_REPEATS, metavar="N", help="steps of each kind (default: %(default)s)"
    )
    parser.add_argument(
        "--processor-time",
        action="store_true",
        help="count the processor's time and not the clock's: for DEVICE=cpu on a machine that does other things too",
    )
    arguments = parser.parse_args(words)
    if arguments.write is not None and (obstacle := _obstacle(arguments.write)):
        parser.error(f"--write {arguments.write}: {obstacle}")
    return arguments


def _obstacle(path: Path) -> str:
    """Why the file must not be written; empty if it may. Only a file that this command wrote is replaced."""
    try:
        with path.open(encoding="utf-8", errors="replace") as old:
            ours = old.readline().startswith(HEADER)
    except FileNotFoundError:
        return "" if path.parent.is_dir() else "no such folder"
    except OSError as error:
        return error.strerror or "it cannot be read"
    return "" if ours else "it holds something else, and would be replaced; name another file"


def _one_line(text: str) -> str:
    return " ".join(text.split())


if __name__ == "__main__":
    raise SystemExit(main())
