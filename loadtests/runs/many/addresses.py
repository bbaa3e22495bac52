"""The plan of the network: a namespace and an address for each process, and a switch between them.

Both ends of every cable are in namespaces of this run, so that the machine's own network has no part in it and no
address can collide with one of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

PREFIX = "weir-many-"
"""Of all namespaces of this run, and of no other."""
SWITCH = f"{PREFIX}switch"
BRIDGE = "bridge"
ETHERNET = "eth0"
SUBNET, MASK = "10.77.0", 24
FIRST_ROUTER, FIRST_WORKER, STORE, CLIENT = 10, 50, 90, 100
MAX_OF_A_KIND = 32


@dataclass(frozen=True, slots=True)
class Node:
    """One process's place. `name` is also that of its cable at the switch: an interface has at most 15 characters."""

    name: str
    address: str

    @property
    def namespace(self) -> str:
        return f"{PREFIX}{self.name}"


@dataclass(frozen=True, slots=True)
class Net:
    routers: tuple[Node, ...]
    workers: tuple[Node, ...]
    store: Node
    client: Node

    def __iter__(self) -> Iterator[Node]:
        yield from (*self.routers, *self.workers, self.store, self.client)

    def node(self, name: str) -> Node:
        """Raises KeyError if there is none of this name."""
        return {node.name: node for node in self}[name]


def net_of(routers: int, workers: int) -> Net:
    """Raises ValueError for more nodes than the plan has addresses."""
    for kind, count in (("routers", routers), ("workers", workers)):
        if not 1 <= count <= MAX_OF_A_KIND:
            raise ValueError(f"{count} {kind}: 1 to {MAX_OF_A_KIND} were expected")
    return Net(
        _nodes("router", routers, FIRST_ROUTER),
        _nodes("worker", workers, FIRST_WORKER),
        Node("store", f"{SUBNET}.{STORE}"),
        Node("client", f"{SUBNET}.{CLIENT}"),
    )


def _nodes(kind: str, count: int, first: int) -> tuple[Node, ...]:
    return tuple(Node(f"{kind}-{number}", f"{SUBNET}.{first + number}") for number in range(count))
