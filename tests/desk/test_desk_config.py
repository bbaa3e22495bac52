"""The desk's settings: the servers and their slots, with every fault named at once."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from services.desk.config import MAX_SERVERS, DeskSettings


def settings(servers: str) -> DeskSettings:
    return DeskSettings(_env_file=None, desk_servers=servers)


def test_servers_are_named_with_their_slots() -> None:
    assert settings(" vllm-a=32, b=1,").servers == {"vllm-a": 32, "b": 1}
    assert settings("").servers == {}
    assert settings("a=auto,b=2").servers == {"a": None, "b": 2}, "auto slots are learned"


def test_every_fault_is_named_at_once() -> None:
    with pytest.raises(ValidationError) as refused:
        settings("a=0,g=auto2,b=many,c d=3,e=100001,f=1,f=2")
    told = str(refused.value)
    for fault in (
        "'a=0' is not name=slots",
        "'b=many' is not",
        "'g=auto2' is not",
        "'c d=3' is not",
        "e has 100001 slots",
        "f is named twice",
    ):
        assert fault in told


def test_there_are_so_many_servers_and_no_more() -> None:
    names = [f"s{number}=1" for number in range(MAX_SERVERS + 1)]
    assert len(settings(",".join(names[:-1])).servers) == MAX_SERVERS
    with pytest.raises(ValidationError, match="at most 256"):
        settings(",".join(names))
