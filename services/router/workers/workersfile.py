"""The worker list: WORKERS_FILE, or WORKERS as addresses of Weir workers. Validated whole; every fault is listed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from services.router.parsing.fields import ALLOWABLE
from services.router.upstreams.call import MAX_MODELS
from services.router.yamlfile import Unreadable, read_yaml
from services.runtime.settings import describe

MAX_WORKERS = 256

Slots = Annotated[int, Field(ge=1, le=100_000)]
Lookahead = Annotated[int, Field(ge=0, le=1)]
Model = Annotated[str, Field(min_length=1, max_length=256)]


class WorkerSpec(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")
    kind: Literal["weir", "openai"]
    url: str
    slots: Slots | Literal["auto"] | None = None
    lookahead: Lookahead | Literal["auto"] | None = None
    models: Annotated[list[Model], Field(max_length=MAX_MODELS)] = []
    desk: str | None = None
    """Of a server that cannot lend: what lends its slots to several routers, as the URL of its book."""
    api_key_env: str | None = None
    allow: list[str] = []
    cache_salt: bool = False
    metrics: bool = True
    answers_when_busy: bool = True
    """Whether it answers probes while it works on requests."""

    @field_validator("allow")
    @classmethod
    def _may_be_allowed(cls, allow: list[str]) -> list[str]:
        unknown = [name for name in allow if name not in ALLOWABLE]
        if unknown:
            raise ValueError(
                f"{', '.join(map(repr, unknown))}: not a withheld field. Those that may be allowed are "
                f"{', '.join(sorted(ALLOWABLE))}; every other field is passed on without it"
            )
        return allow

    @field_validator("url", "desk")
    @classmethod
    def _is_an_address(cls, url: str | None) -> str | None:
        if url is None:
            return None
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is not an http:// or https:// address")
        return url.rstrip("/")

    @model_validator(mode="after")
    def _fits_its_kind(self) -> Self:
        if self.kind == "openai" and self.slots is None and self.desk is None:
            raise ValueError("kind openai needs `slots`: the most requests it may run at once, or auto")
        if self.desk is not None and (self.slots is not None or self.lookahead is not None):
            raise ValueError(
                "the desk says how many slots there are to use, as its DESK_SERVERS says (auto learns them): "
                "leave `slots` and `lookahead` out"
            )
        if self.kind == "weir" and self.desk is not None:
            raise ValueError("kind weir lends its slots itself: leave `desk` out")
        if self.kind == "weir" and self.slots is not None:
            raise ValueError("kind weir announces its own slots: leave `slots` out")
        if self.kind == "weir" and self.models:
            raise ValueError("kind weir announces its own models: leave `models` out")
        if self.kind == "weir" and (self.allow or self.cache_salt):
            raise ValueError("kind weir receives no additional client fields: leave `allow` and `cache_salt` out")
        if self.kind == "weir" and not self.metrics:
            raise ValueError("kind weir announces what it can take: leave `metrics` out")
        if self.kind == "weir" and not self.answers_when_busy:
            raise ValueError("kind weir answers probes at any time: leave `answers_when_busy` out")
        if self.slots == "auto" and self.lookahead:
            raise ValueError(
                "slots: auto learns how much to send, the server's own queue included: leave `lookahead` out"
            )
        if self.api_key_env is not None and not os.environ.get(self.api_key_env):  # noqa: TID251  named by the file
            raise ValueError(f"api_key_env names {self.api_key_env}, which is not set")
        if {"\r", "\n"} & set(self.api_key() or ""):
            raise ValueError(f"the key in {self.api_key_env} has a line break: remove it")
        return self

    @property
    def sends_ahead(self) -> Lookahead | Literal["auto"]:
        """`lookahead`, or its default: auto for Weir workers, which have a queue; 0 for servers whose limit on
        concurrent requests may be strict, or is learned.
        """
        if self.lookahead is not None:
            return self.lookahead
        return "auto" if self.kind == "weir" and self.slots != "auto" else 0

    def api_key(self) -> str | None:
        """The upstream's API key, from the environment variable that the file names; keys are never in files."""
        return os.environ[self.api_key_env] if self.api_key_env else None  # noqa: TID251  named by the file


class WorkerList(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    workers: Annotated[list[WorkerSpec], Field(min_length=1, max_length=MAX_WORKERS)]

    @model_validator(mode="after")
    def _names_are_unique(self) -> Self:
        names = [worker.name for worker in self.workers]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"duplicate names: {', '.join(twice)}")
        return self


def read(path: Path) -> list[WorkerSpec]:
    """The workers of a file. Raises ValueError listing every fault."""
    where = f"WORKERS_FILE {path}"
    try:
        content = read_yaml(path)
    except Unreadable as fault:
        raise ValueError(f"{where}: {fault}") from None
    return _checked(content, where)


def from_urls(urls: str) -> list[WorkerSpec]:
    """Weir workers from comma-separated addresses. Raises ValueError listing every fault."""
    named = [url.strip() for url in urls.split(",") if url.strip()]
    return _checked(
        {"workers": [{"name": f"worker-{i}", "kind": "weir", "url": url} for i, url in enumerate(named)]}, "WORKERS"
    )


def _checked(content: Any, where: str) -> list[WorkerSpec]:
    try:
        return WorkerList.model_validate(content).workers
    except ValidationError as faults:
        raise ValueError(f"{where}:\n{describe(faults)}") from None
