"""A torch engine on the tiny model, turned by hand, and the plain model to hold it to."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from services.contracts.generate import GenerateRequest
from services.worker.engine import FinishReason, Sequence, Step
from services.worker.engines.torch.engine import Prompted, TorchEngine
from services.worker.engines.torch.loading import load
from services.worker.engines.torch.spec import TorchSpec
from services.worker.engines.torch.text import Detokenizer

WORDS = ("the", "queue", "is", "bounded", "and", "a", "request", "that", "cannot", "make", "it", "is", "told", "so")


def make_engine(folder: Path, **changes: Any) -> TorchEngine:
    """One on the model in `folder`; without measuring, so that it is there at once."""
    settings: dict[str, Any] = {"model_id": str(folder), "warm_up": False, "device": "cpu", "prefill_chunk_tokens": 32}
    return load(TorchSpec(**(settings | changes)))


def ask(id: str = "r", **changes: Any) -> GenerateRequest:
    fields: dict[str, Any] = {
        "id": id, "tenant": "t", "deadline_ms": 1000.0, "max_tokens": 8, "prompt": "a queue", "temperature": 0.0,
    }  # fmt: skip
    if "messages" in changes:
        fields["prompt"] = None
    return GenerateRequest(**(fields | changes))


def prompt_of(words: int, first: int = 0) -> str:
    """A prompt of so many words, unlike that of another `first`."""
    return " ".join(itertools.islice(itertools.cycle(WORDS), first, first + words))


def join(engine: TorchEngine, id: str, deadline: float | None = None, **changes: Any) -> Prompted:
    """Prepare and admit."""
    sequence = engine.prepare(ask(id, **changes))
    if deadline is not None:
        sequence.deadline = deadline
    engine.admit(sequence)
    return sequence


class Record:
    """What a run of an engine yielded, by request id."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.pieces: dict[str, list[str]] = {}
        self.reasons: dict[str, FinishReason] = {}
        self.lost: dict[str, str] = {}

    def add(self, step: Step) -> None:
        self.steps.append(step)
        for sequence, text in step.tokens:
            self.pieces.setdefault(sequence.id, []).append(text)
        self.reasons |= {sequence.id: reason for sequence, reason in step.finished}
        self.lost |= {sequence.id: why for sequence, why in step.lost}

    def text(self, id: str) -> str:
        return "".join(self.pieces[id])


def run(engine: TorchEngine, joining: Iterable[tuple[int, Sequence]] = ()) -> Record:
    """Turn the engine until it is empty. Each of `joining` is admitted before the step of its number, if it can."""
    record = Record()
    line = sorted(joining, key=lambda entry: entry[0])
    for number in itertools.count():
        while line and line[0][0] <= number and engine.running < engine.slots:
            engine.admit(line.pop(0)[1])
        if not line and not engine.running:
            return record
        if engine.running:
            record.add(engine.step())
    raise AssertionError("unreachable")


class Plain:
    """The same model without batching, pages or chunks: `generate`, one request at a time."""

    def __init__(self, folder: Path) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.decode = self.tokenizer.backend_tokenizer.decode

    def greedy(self, prompt: str, tokens: int) -> list[int]:
        ids = torch.tensor([self.tokenizer(prompt)["input_ids"]])
        mask = torch.ones_like(ids)
        with torch.no_grad():
            whole = self.model.generate(ids, attention_mask=mask, max_new_tokens=tokens, do_sample=False)
        return whole[0, ids.shape[1] :].tolist()

    def pieces(self, prompt: str, tokens: int) -> list[str]:
        """What an engine must show for it: a piece for each token."""
        ids = self.greedy(prompt, tokens)
        eos = self.tokenizer.eos_token_id
        text = Detokenizer(self.decode)
        pieces = ["" if token == eos else text.push(token) for token in ids]
        pieces[-1] += text.flush()
        return pieces


class Rows:
    """Counts the token rows that went through the model."""

    def __init__(self, engine: TorchEngine) -> None:
        self.counts: list[int] = []
        engine._batch._model.register_forward_pre_hook(self._count, with_kwargs=True)

    def _count(self, model: Any, args: Any, kwargs: Any) -> None:
        self.counts.append(kwargs["input_ids"].shape[1])
