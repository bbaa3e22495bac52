"""Status lines say what RFC 9110 says, under every version of Python."""

from __future__ import annotations

import pytest

from services.runtime.errors import REFUSALS
from services.runtime.framing import STATUS_LINES


@pytest.mark.parametrize(
    ("status", "phrase"),
    [
        (200, "OK"),
        (404, "Not Found"),
        (413, "Content Too Large"),
        (414, "URI Too Long"),
        (416, "Range Not Satisfiable"),
        (422, "Unprocessable Content"),
        (429, "Too Many Requests"),
        (499, ""),
    ],
)
def test_a_reason_phrase_is_that_of_the_standard(status: int, phrase: str) -> None:
    assert STATUS_LINES[status] == f"HTTP/1.1 {status} {phrase}\r\n".encode()


def test_every_refusal_has_a_status_line() -> None:
    assert all(answer.status in STATUS_LINES for answer in REFUSALS.values())
