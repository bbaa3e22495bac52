"""`weir ingest`: runs retrieval's ingester on the running stack's database."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from services.cli.config import LabSettings
from services.cli.errors import LabError
from services.cli.lease import running_stack
from services.runtime.settings import environment


def ingest(settings: LabSettings, words: list[str]) -> NoReturn:
    """Become the ingester. POSTGRES_URL comes first, then the database of the stack that runs here. Raises LabError."""
    stack = running_stack(settings.folder)
    postgres_url = settings.postgres_url or (stack.postgres_url if stack else "")
    redis_url = settings.redis_url or (stack.redis_url if stack else "")
    if not postgres_url:
        raise LabError(f"Nothing runs in {settings.folder}: start it with `weir up`, or set POSTGRES_URL.")
    stores = {"POSTGRES_URL": postgres_url, **({"REDIS_URL": redis_url} if redis_url else {})}
    command = [sys.executable, "-m", "services.retrieval.ingest", *words]
    os.execve(sys.executable, command, {**environment(), **stores})
