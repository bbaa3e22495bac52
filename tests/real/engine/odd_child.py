"""`python -m tests.real.engine.odd_child FD`: an engine's process whose engine does odd things when a request says so.

The model's name is a folder. A request whose id is a word of `IN_PREPARE` or `IN_STEP` sets the oddity off where it
says; "hold" there means: touch `FOLDER/held`, then wait for `FOLDER/open`. What the engine computes for whom, and whom
it drops, is written to `FOLDER/ledger`, one line each.
"""

from __future__ import annotations

import gc
import os
import random
import socket
import sys
import time
from pathlib import Path

from services.runtime.errors import BadInput
from services.worker.child import serve
from services.worker.engine import Sequence, Step
from services.worker.engine_executor import EngineDied, EngineUnusable
from services.worker.engine_wire import Simulated
from services.worker.engines.simulated import LatencyModel, SimulatedEngine

SECRET = "a prompt that no log may quote"


class OddEngine(SimulatedEngine):
    in_step = False

    def __init__(self, spec: Simulated) -> None:
        super().__init__(
            model=spec.model, slots=spec.slots, kv_tokens=spec.kv_tokens, latency=LatencyModel(),
            prefill_chunk_tokens=spec.prefill_chunk_tokens, chance=random.Random(spec.seed),
        )  # fmt: skip
        self.folder = Path(spec.model)
        self.ledger = (self.folder / "ledger").open("a", buffering=1)

    def prepare(self, request):
        match request.id:
            case "hold-in-prepare":
                hold(self.folder)
            case "raise-in-prepare":
                raise ValueError(f"no template for {request.prompt}")
            case "reject":
                raise BadInput("too much of it", "messages", status=413, code="request_too_large")
            case "how-many":
                raise BadInput(str(sum(isinstance(each, Sequence) for each in gc.get_objects())))
        return super().prepare(request)

    def admit(self, sequence):
        if sequence.id == "refuse-admit":
            raise RuntimeError("no room after all")
        super().admit(sequence)

    def drop(self, sequence):
        if sequence.id == "raise-in-drop":
            super().drop(sequence)
            raise ValueError("freed twice")
        if not self.in_step:  # those who finish are not dropped by the worker
            self.ledger.write(f"drop {sequence.id}\n")
        super().drop(sequence)

    def step(self) -> Step:
        assert self._answers, "stepped with nobody to step for"
        ids = {sequence.id for sequence in self._answers}
        if "raise-in-step" in ids:
            raise ValueError(f"NaN in the logits of {SECRET}")
        if "exit-in-step" in ids:
            os._exit(3)
        if "die-in-step" in ids:
            raise EngineDied("the device is lost")
        if "shrink" in ids:
            self.slots, self.kv_tokens = 1, 500
        self.in_step = True
        step = super().step()
        self.in_step = False
        for sequence, _ in step.tokens:
            self.ledger.write(f"token {sequence.id}\n")
        if "hold-in-step" in ids:
            hold(self.folder)
        if "lose" in ids:
            self._lose(step)
        return step

    def _lose(self, step: Step) -> None:
        lost = next(sequence for sequence in self._answers if sequence.id == "lose")
        super().drop(lost)
        step.lost.append((lost, "out of memory"))

    def close(self) -> None:
        self.ledger.write("closed\n")


def hold(folder: Path) -> None:
    (folder / "held").touch()
    while not (folder / "open").exists():
        time.sleep(0.002)


def make(spec) -> OddEngine:
    folder = Path(spec.model)
    match folder.name:
        case "held":
            hold(folder)
        case "unusable":
            raise EngineUnusable("no such model; set MODEL_ID")
        case "broken":
            raise ValueError("the weights are no weights")
        case "missing":
            import no_such_module  # type: ignore[import-not-found] # noqa: F401
    return OddEngine(spec)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])), make)
