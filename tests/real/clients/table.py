"""The clients of the field, one row each: what is installed for it, and which operations it does in these tests.

Each has an environment of its own, made by `python -m tests.real.clients`, and a script in `scripts`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from loadtests.paths import ROOT
from loadtests.runs.matrix.environments import Place, program

HERE = Path(__file__).parent
PLACE = Place(
    HERE / "pins",
    Path(os.environ.get("CLIENTS_DIR") or ROOT / ".venv" / "clients"),
    within_s=1800,
)


class Client(NamedTuple):
    name: str
    """Its pins, its environment."""
    requires: tuple[str, ...]
    """What its pins are made from: itself first."""
    script: str = ""
    operations: tuple[str, ...] = ()
    unhashed: tuple[str, ...] = ()
    """Installed at an exact version without a hash, since each index has its own build."""
    environment: tuple[tuple[str, str], ...] = ()

    def program(self, command: str = "python") -> Path | None:
        return program(self.name, command, PLACE)()

    def missing(self) -> str:
        """Why it cannot run here; empty if it can."""
        return "" if self.program() else f"{self.name} is not installed: python -m tests.real.clients {self.name}"


CHATS = ("chat", "chat_async", "chat_stream", "completion", "half_left")
PASSED_ON = ("tools", "parsed", "vectors")
ERRORS = ("limited", "bad", "beyond_own", "no_key", "no_model")

OPENAI = Client(
    "openai",
    ("openai==3.57.0",),
    "openai_client.py",
    (
        *CHATS, *PASSED_ON, *ERRORS, "models", "model", "tools_stream", "several", "picture", "prompts", "token_ids",
        "vectors_of_ids", "responses", "without_v1",
    ),
)  # fmt: skip
ANTHROPIC = Client("anthropic", ("anthropic==2.14.0",), "anthropic_client.py", ("models", "messages", "count_tokens"))
LITELLM = Client(
    "litellm",
    ("litellm==1.110.2",),
    "litellm_client.py",
    (*CHATS, *PASSED_ON, *ERRORS, "several", "prompts", "bridge", "responses"),
)
LANGCHAIN = Client(
    "langchain-openai",
    ("langchain-openai==1.7.4",),
    "langchain_client.py",
    (*CHATS, *PASSED_ON, *ERRORS, "batch", "several", "picture", "prompts", "vectors_of_ids", "responses"),
)
LLAMA_INDEX = Client(
    "llama-index",
    ("llama-index-llms-openai-like==0.8.1", "llama-index-embeddings-openai==0.7.0"),
    "llamaindex_client.py",
    (*CHATS, *PASSED_ON, *ERRORS),
)
GUIDELLM = Client("guidellm", ("guidellm==0.8.1",), unhashed=("torch==2.13.0",), environment=(("HF_HUB_OFFLINE", "1"),))
AIPERF = Client("aiperf", ("aiperf==0.13.0",))
SCHEMATHESIS = Client("schemathesis", ("schemathesis==4.32.5",))

CLIENTS = (OPENAI, ANTHROPIC, LITELLM, LANGCHAIN, LLAMA_INDEX, GUIDELLM, AIPERF, SCHEMATHESIS)
SCRIPTED = tuple(client for client in CLIENTS if client.script)
