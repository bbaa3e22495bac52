"""A server that takes all of OpenAI's fields gets, through the router, all that the API's description allows.

Skipped where schemathesis is not installed: `python -m tests.real.clients schemathesis`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtests.cluster.stand import key_of
from tests.real.clients.described import run
from tests.real.clients.recorder import recorder
from tests.real.clients.stand import OPEN, running
from tests.real.clients.table import SCHEMATHESIS


def test_what_the_description_allows_reaches_a_server_that_takes_it(tmp_path: Path) -> None:
    if why := SCHEMATHESIS.missing():
        pytest.skip(why)
    with recorder() as url, running(url, tmp_path, own=False) as stand:
        run(stand.router.url, tmp_path, only=("/v1/chat/completions", "/v1/completions"), key=key_of(OPEN))
