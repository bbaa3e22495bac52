"""The stack's INTERNAL_TOKEN, made at each start unless it is set; `none` means no token.

`weir up` passes it to its children in their environment, and keeps it in DATA_DIR/internal-token (0600) while it runs.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import SecretStr

from services.cli.child import private
from services.cli.config import LabSettings
from services.cli.errors import LabError
from services.runtime.internaltoken import NONE, read_token

TOKEN_BYTES = 24


def with_token(settings: LabSettings) -> LabSettings:
    """The settings with a token: the one that is set, or a new one; without one for `none`."""
    if settings.shared_token or settings.internal_token.get_secret_value() == NONE:
        return settings
    return settings.model_copy(update={"internal_token": SecretStr(secrets.token_urlsafe(TOKEN_BYTES))})


@contextmanager
def kept(settings: LabSettings) -> Iterator[None]:
    """Keep the token in its file (0600) while the block runs. Raises LabError if the file cannot be written."""
    token, file = settings.shared_token, settings.token_file
    try:
        file.unlink(missing_ok=True)
        if token:
            with open(file, "xb", opener=private) as opened:
                opened.write(token + b"\n")
    except OSError as error:
        raise LabError(f"{file} cannot be written ({error.strerror}): choose a folder with DATA_DIR.") from error
    try:
        yield
    finally:
        file.unlink(missing_ok=True)


def token_of(settings: LabSettings) -> str:
    """The token of the stack in this folder: the one set, or the one in its file; empty if unknown."""
    if settings.internal_token.get_secret_value() == NONE:
        return ""
    return settings.shared_token.decode("ascii") or _in_file(settings.token_file)


def _in_file(file: Path) -> str:
    try:
        return read_token(file)
    except ValueError:
        return ""


def shown(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"} if token else {}
