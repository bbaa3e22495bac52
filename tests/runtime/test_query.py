"""The query of a URL: what is ambiguous is refused, by name."""

from __future__ import annotations

import contextlib
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.runtime.errors import BadInput
from services.runtime.query import parameters

KNOWN = ("after", "limit")


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])))
def test_any_text_survives_its_escapes(value: str) -> None:
    assert parameters(f"after={quote(value)}&limit=5".encode(), KNOWN) == {"after": value, "limit": "5"}


def test_no_query_is_no_parameters() -> None:
    assert parameters(b"", KNOWN) == {}


@pytest.mark.parametrize(
    ("query", "param"),
    [
        (b"other=1", "other"),
        (b"limit=1&limit=2", "limit"),
        (b"after=%00", "after"),
        (b"after", None),
        (b"&&", None),
        (b"after=%ff", None),
        (b"after=\xff", None),
        (b"&".join([b"after=1"] * 17), None),
    ],
)
def test_what_is_unknown_repeated_or_broken_is_refused_by_name(query: bytes, param: str | None) -> None:
    with pytest.raises(BadInput) as refused:
        parameters(query, KNOWN)
    assert (refused.value.status, refused.value.param) == (400, param)


@given(st.binary(max_size=200))
def test_no_bytes_fail_otherwise(query: bytes) -> None:
    with contextlib.suppress(BadInput):
        parameters(query, KNOWN)
