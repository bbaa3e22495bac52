"""INTERNAL_TOKEN, the shared secret of Weir's own services (`internal`): valid values, and which listeners need one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from services.runtime.addresses import is_loopback

NONE = "none"  # INTERNAL_TOKEN=none: `make up` makes none either
MIN_TOKEN_CHARS, MAX_TOKEN_CHARS = 16, 256

HeaderPairs = tuple[tuple[bytes, bytes], ...]


def address_faults(token: bytes, inner_network: bool, **listeners: str) -> Iterator[str]:
    """The faults of listeners for Weir's own services, given as HOST="0.0.0.0", one line each."""
    if token or inner_network:
        return
    for setting, host in listeners.items():
        if not is_loopback(host):
            yield (
                f"{setting}={host} is not loopback, and every client that reaches it is trusted: set INTERNAL_TOKEN "
                f"(or INTERNAL_TOKEN_FILE) to the same value for all of Weir's services, or {setting}=127.0.0.1, or "
                "INNER_NETWORK=true where only Weir's own services reach it"
            )


def token_fault(text: str) -> str | None:
    """Why the text cannot be the token; None if it can, or if there is none."""
    if text in ("", NONE):
        return None
    if not MIN_TOKEN_CHARS <= len(text) <= MAX_TOKEN_CHARS:
        return f"a token has {MIN_TOKEN_CHARS} to {MAX_TOKEN_CHARS} characters"
    if not all("!" <= char <= "~" for char in text):
        return "a token has printable ASCII characters only, and no spaces"
    return None


def read_token(file: Path) -> str:
    """The token in this file. Raises ValueError if the file cannot be read or holds no valid token."""
    try:
        text = file.read_text(encoding="latin-1").strip()
    except OSError as error:
        raise ValueError(f"{file} cannot be read: {error.strerror}") from None
    fault = token_fault(text) if text else "the file is empty"
    if fault is not None:
        raise ValueError(f"{file}: {fault}")
    return text


def authorization(token: bytes) -> HeaderPairs:
    return ((b"authorization", b"Bearer " + token),) if token else ()
