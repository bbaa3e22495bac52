"""Which Hosts and Origins a listener answers: DNS rebinding and cross-site requests, without a socket."""

from __future__ import annotations

import pytest

from services.runtime.hostcheck import MAX_CACHED_HOSTS, HostCheck, PageCheck, origin_check
from services.runtime.http import Exchange
from tests.console.rig import FakeWire


def asked(method: str = "GET", **headers: str | None) -> Exchange:
    sent = [(name.encode(), value.encode("latin-1")) for name, value in headers.items() if value is not None]
    return Exchange(FakeWire(), method, "/ask", sent)


def status(check: HostCheck, host: str | None) -> int:
    refusal = check(asked(host=host), 0)
    return 200 if refusal is None else refusal.status


OURS = [None, "localhost", "LocalHost:8000", "localhost.", "localhost.:8000", "127.0.0.1", "127.0.0.1:8000",
        "127.9.9.9:1", "[::1]:8000", "[::1]", "[0:0:0:0:0:0:0:1]:9", "[::ffff:127.0.0.1]:8000"]  # fmt: skip
NETWORK = ["router:8000", "worker-0:8010", "ROUTER", "192.168.1.4:8000", "[fe80::1]:8000", "8.8.8.8"]
FOREIGN = ["", ":8000", "evil.example", "evil.example:8000", "127.0.0.1.evil.example", "localhost.evil.example:8000",
           "127.0.0.1@evil.example", "evil.example.", "127.0.0.1, evil.example", "a.b", "[::1].evil.example",
           "\xe9.example"]  # fmt: skip


@pytest.mark.parametrize("listens", ["127.0.0.1", "localhost", "::1"])
@pytest.mark.parametrize("host", OURS)
def test_a_listener_on_loopback_is_called_by_loopbacks_names(listens: str, host: str | None) -> None:
    assert status(HostCheck(listens), host) == 200


@pytest.mark.parametrize("host", NETWORK + FOREIGN)
def test_a_listener_on_loopback_takes_no_other_name(host: str) -> None:
    assert status(HostCheck("127.0.0.1"), host) == 421


@pytest.mark.parametrize("host", OURS + NETWORK)
def test_a_listener_on_another_address_takes_addresses_and_names_without_a_dot(host: str | None) -> None:
    assert status(HostCheck("0.0.0.0"), host) == 200


@pytest.mark.parametrize("host", FOREIGN)
def test_a_name_that_an_attacker_could_point_here_is_taken_nowhere(host: str) -> None:
    assert status(HostCheck("0.0.0.0"), host) == 421


def test_allowed_hosts_adds_whole_names_and_a_star_takes_all() -> None:
    check = HostCheck("127.0.0.1", "api.example.org, Weir.Example:8443 ,box")
    for host in ("api.example.org", "API.example.org:443", "api.example.org.", "weir.example:1", "box:8000"):
        assert status(check, host) == 200
    for host in ("example.org", "x.api.example.org", "boxes"):
        assert status(check, host) == 421
    assert status(HostCheck("127.0.0.1", "*"), "evil.example") == 200


def test_the_refusal_names_the_setting_that_lets_the_name_in() -> None:
    refusal = HostCheck("127.0.0.1")(asked(host="api.example.org:8000"), 0)
    assert refusal is not None
    assert refusal.code == "misdirected_request"
    assert "'api.example.org'" in refusal.message
    assert "ALLOWED_HOSTS" in refusal.message


def test_what_is_remembered_of_hosts_has_a_bound_and_changes_no_verdict() -> None:
    check = HostCheck("127.0.0.1")
    for port in range(3 * MAX_CACHED_HOSTS):
        assert status(check, f"127.0.0.1:{port}") == 200
        assert status(check, f"{port}.evil.example") == 421
    assert len(check.known) == MAX_CACHED_HOSTS
    assert status(check, "127.0.0.1:60000") == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://127.0.0.1:8001", "http://localhost:8000", ""]
)
def test_the_page_of_another_site_writes_nothing(method: str, origin: str) -> None:
    refusal = origin_check(asked(method, host="127.0.0.1:8000", origin=origin), 0)
    assert refusal is not None
    assert (refusal.status, refusal.code) == (403, "forbidden")


@pytest.mark.parametrize("origin", [None, "http://127.0.0.1:8000", "https://127.0.0.1:8000"])
def test_programs_and_our_own_page_write(origin: str | None) -> None:
    assert origin_check(asked("POST", host="127.0.0.1:8000", origin=origin), 0) is None


def test_a_page_without_a_host_is_not_ours() -> None:
    assert origin_check(asked("POST", origin="http://"), 0) is not None


def test_both_checks_in_one_say_what_each_says_whatever_came_before() -> None:
    both = PageCheck("127.0.0.1")
    for host, origin, expected in (
        ("127.0.0.1:8000", None, 200),
        ("127.0.0.1:8000", "http://evil.example", 403),  # by a Host that is known by now
        ("127.0.0.1:8000", "http://127.0.0.1:8000", 200),
        ("evil.example", None, 421),
        ("evil.example", "http://evil.example", 421),
        ("127.0.0.1:8000", None, 200),
    ):
        refusal = both(asked("POST", host=host, origin=origin), 0)
        assert (200 if refusal is None else refusal.status) == expected
