"""What goes wrong with the governor alone."""

from __future__ import annotations

from loadtests.world.faults import Begin, End, Stage, cut, drained, frozen, killed


def _kill(stage: Stage) -> tuple[str, End]:
    """The governor is killed, and started again at the end."""
    node = stage.system.governor
    return killed(node if node.up else None)


def _freeze(stage: Stage) -> tuple[str, End]:
    """The governor's process stands still."""
    node = stage.system.governor
    return frozen(node if node.up else None)


def _drain(stage: Stage) -> tuple[str, End]:
    """The governor gets SIGTERM under load: it drains and ends. It is started again when both are over."""
    return drained(stage.system.governor, stage.system.simulation)


def _cut_off(stage: Stage) -> tuple[str, End]:
    """Nothing gets through between the governor and a client machine, in one direction or in both."""
    loop = stage.system.governor.loop
    assert loop is not None
    network, client, governor = stage.system.simulation.network, stage.rng.choice(stage.clients).host, loop.host
    ways = [(client, governor), (governor, client)]
    ways = [ways[stage.rng.randrange(2)]] if stage.rng.random() < 0.3 else ways
    return f"{client.name}, {len(ways)} way(s)", cut(network, ways)


GOVERNOR_FAULTS: dict[str, Begin] = {
    "killed governor": _kill,
    "frozen governor": _freeze,
    "drained governor": _drain,
    "unreachable governor": _cut_off,
}
