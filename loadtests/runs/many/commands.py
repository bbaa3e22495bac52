"""What `ip` and `iptables` are asked to do, as data: the network, its end, and the faults of cables and links."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from loadtests.runs.many.addresses import BRIDGE, ETHERNET, MASK, PREFIX, SWITCH, Net, Node

Command = tuple[str, ...]
Rules = tuple[tuple[str, ...], ...]
"""Rules of iptables, each without the word that adds or deletes it."""


def making(net: Net) -> Iterator[Command]:
    """The switch, then each node with its cable."""
    yield ("ip", "netns", "add", SWITCH)
    yield ("ip", "-n", SWITCH, "link", "add", BRIDGE, "type", "bridge")
    yield ("ip", "-n", SWITCH, "link", "set", BRIDGE, "up")
    for node in net:
        there = ("ip", "-n", node.namespace)
        yield ("ip", "netns", "add", node.namespace)
        peer = ("peer", "name", ETHERNET, "netns", node.namespace)
        yield ("ip", "-n", SWITCH, "link", "add", node.name, "type", "veth", *peer)
        yield ("ip", "-n", SWITCH, "link", "set", node.name, "master", BRIDGE, "up")
        yield (*there, "addr", "add", f"{node.address}/{MASK}", "dev", ETHERNET)
        yield (*there, "link", "set", ETHERNET, "up")
        yield (*there, "link", "set", "lo", "up")


def removing(namespaces: Sequence[str]) -> Iterator[Command]:
    """The end of these namespaces, and with them of their cables. Raises ValueError for one that is not of a run."""
    foreign = [name for name in namespaces if not name.startswith(PREFIX)]
    if foreign:
        raise ValueError(f"{', '.join(foreign)}: only names that begin with {PREFIX} are removed")
    yield from (("ip", "netns", "delete", name) for name in namespaces)


def inside(node: Node, command: Sequence[str]) -> Command:
    """The command in this node's namespace. Its process has the pid that the caller sees."""
    return ("ip", "netns", "exec", node.namespace, *command)


def cable(node: Node, *, into: bool) -> Command:
    """Pull a node's cable out of the switch, or put it in."""
    return ("ip", "-n", SWITCH, "link", "set", node.name, "up" if into else "down")


def towards(peer: Node) -> Rules:
    """Nothing leaves for the peer."""
    return (("OUTPUT", "-d", peer.address, "-j", "DROP"),)


def from_(peer: Node) -> Rules:
    """Nothing of the peer arrives."""
    return (("INPUT", "-s", peer.address, "-j", "DROP"),)


def both_ways(peer: Node) -> Rules:
    return (*towards(peer), *from_(peer))


def reset(peer: Node) -> Rules:
    """Each segment to the peer is answered with a reset, which ends the connection."""
    return (("OUTPUT", "-d", peer.address, "-p", "tcp", "-j", "REJECT", "--reject-with", "tcp-reset"),)


def adding(node: Node, rules: Rules) -> Iterator[Command]:
    yield from (inside(node, ("iptables", "-w", "-A", *rule)) for rule in rules)


def deleting(node: Node, rules: Rules) -> Iterator[Command]:
    yield from (inside(node, ("iptables", "-w", "-D", *rule)) for rule in rules)
