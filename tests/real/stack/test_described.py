"""The API is what its description says: schemathesis sends what the description allows, and what it does not.

Skipped where schemathesis is not installed: `python -m tests.real.clients schemathesis`.
"""

from __future__ import annotations

import pytest

from tests.real.clients.described import run
from tests.real.clients.table import SCHEMATHESIS
from tests.real.stack.stand import Stand

REFUSE = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/documents/{id}")
"""A server that serves the model: a Weir worker refuses what it cannot do, which no description can say;
tests/real/clients/test_described.py asks a server that takes all of it. A document may be no text, or no PDF.
"""


def test_what_the_description_allows_is_answered_and_what_it_does_not_is_refused(stand: Stand) -> None:
    if why := SCHEMATHESIS.missing():
        pytest.skip(why)
    run(stand.router.url, stand.folder, may_refuse=REFUSE)
