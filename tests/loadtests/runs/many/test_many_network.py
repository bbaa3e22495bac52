"""The network of a run: who has which address, and what `ip` and `iptables` are asked to do."""

from __future__ import annotations

import os
import shutil
import sys

import pytest

from loadtests.runs.many import namespaces
from loadtests.runs.many.addresses import MAX_OF_A_KIND, PREFIX, SWITCH, net_of
from loadtests.runs.many.commands import (
    adding,
    both_ways,
    cable,
    deleting,
    from_,
    inside,
    making,
    removing,
    reset,
    towards,
)

NET = net_of(2, 2)
ROUTER, WORKER = NET.routers[0], NET.workers[1]


def words(commands) -> list[str]:
    return [" ".join(command) for command in commands]


def test_every_process_has_a_namespace_an_address_and_a_cable_of_its_own() -> None:
    net = net_of(MAX_OF_A_KIND, MAX_OF_A_KIND)
    nodes = list(net)
    assert len(nodes) == 2 * MAX_OF_A_KIND + 2
    for of in (lambda node: node.name, lambda node: node.address, lambda node: node.namespace):
        assert len({of(node) for node in nodes}) == len(nodes)
    assert all(len(node.name) <= 15 for node in nodes)  # the longest name of an interface
    assert all(node.namespace.startswith(PREFIX) for node in nodes)
    assert net.node("worker-3") is net.workers[3]


@pytest.mark.parametrize(("routers", "workers"), [(0, 1), (1, 0), (MAX_OF_A_KIND + 1, 1)])
def test_more_nodes_than_addresses_are_refused(routers: int, workers: int) -> None:
    with pytest.raises(ValueError, match="were expected"):
        net_of(routers, workers)


def test_the_network_is_made_in_namespaces_alone() -> None:
    made = words(making(net_of(1, 1)))
    assert made[:3] == [
        f"ip netns add {SWITCH}",
        f"ip -n {SWITCH} link add bridge type bridge",
        f"ip -n {SWITCH} link set bridge up",
    ]
    assert made[3:9] == [
        "ip netns add weir-many-router-0",
        f"ip -n {SWITCH} link add router-0 type veth peer name eth0 netns weir-many-router-0",
        f"ip -n {SWITCH} link set router-0 master bridge up",
        "ip -n weir-many-router-0 addr add 10.77.0.10/24 dev eth0",
        "ip -n weir-many-router-0 link set eth0 up",
        "ip -n weir-many-router-0 link set lo up",
    ]
    assert all(line.startswith(("ip netns add weir-many-", "ip -n weir-many-")) for line in made)


def test_only_namespaces_of_a_run_are_removed() -> None:
    assert words(removing([SWITCH])) == [f"ip netns delete {SWITCH}"]
    with pytest.raises(ValueError, match="production: only names"):
        list(removing([SWITCH, "production"]))


@pytest.mark.parametrize(
    ("rules", "added"),
    [
        (towards, ["OUTPUT -d 10.77.0.51 -j DROP"]),
        (from_, ["INPUT -s 10.77.0.51 -j DROP"]),
        (both_ways, ["OUTPUT -d 10.77.0.51 -j DROP", "INPUT -s 10.77.0.51 -j DROP"]),
        (reset, ["OUTPUT -d 10.77.0.51 -p tcp -j REJECT --reject-with tcp-reset"]),
    ],
)
def test_a_link_is_cut_in_the_routers_namespace_and_mended_by_the_same_rules(rules, added: list[str]) -> None:
    begin = "ip netns exec weir-many-router-0 iptables -w"
    assert words(adding(ROUTER, rules(WORKER))) == [f"{begin} -A {rule}" for rule in added]
    assert words(deleting(ROUTER, rules(WORKER))) == [f"{begin} -D {rule}" for rule in added]


def test_a_cable_is_pulled_at_the_switch() -> None:
    assert cable(WORKER, into=False) == ("ip", "-n", SWITCH, "link", "set", "worker-1", "down")
    assert cable(WORKER, into=True) == ("ip", "-n", SWITCH, "link", "set", "worker-1", "up")


def test_a_process_starts_in_its_namespace() -> None:
    assert inside(WORKER, ("program", "word")) == ("ip", "netns", "exec", "weir-many-worker-1", "program", "word")


@pytest.mark.parametrize(
    ("root", "tools", "told"),
    [
        (False, ("ip", "iptables"), "need root: sudo make many"),
        (True, ("ip",), "iptables not found: apt-get install"),
        (True, (), "ip and iptables not found"),
    ],
)
def test_what_a_machine_lacks_is_said_before_anything_is_made(
    root: bool, tools: tuple[str, ...], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(os, "geteuid", lambda: 0 if root else 1000)
    monkeypatch.setattr(shutil, "which", lambda name: f"/sbin/{name}" if name in tools else None)
    assert told in namespaces.lacking()
