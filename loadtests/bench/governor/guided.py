"""A fuzzer that sees what it reaches: `python -m loadtests.bench.governor.guided -runs=100000 -max_len=8192 [FOLDER]`.

It needs atheris, which is no part of the development environment: `pip install atheris`. The arguments are libFuzzer's;
new lines go to the first folder, so give it one of your own, and then tests/governor/corpus to begin with.
"""

from __future__ import annotations

import sys

import atheris

with atheris.instrument_imports(include=["services.governor"]):
    from loadtests.bench.governor.fuzz import BOUNDS, CAP, Broken, Peer
    from services.governor.gate import Gate
    from services.governor.protocol import Ended

LONGEST = 65_536


def one_input(data: bytes) -> None:
    """A conversation. The first byte says where it is cut, and how its jobs end."""
    if not data:
        return
    gate = Gate(cap=CAP, bounds=BOUNDS, random=lambda: 0.0)
    peer, how, said = Peer(gate, 0.0), data[0], data[1:LONGEST]
    cut = how * len(said) // 256
    for piece in (said[:cut], said[cut:]):
        peer.take(peer.conversation.receive(piece, 0.0))
        while peer.work is not None:
            peer.end_job(list(Ended)[how % len(Ended)], 0.0)
    peer.take(peer.conversation.half_closed(0.0))
    if peer.work is not None:
        peer.end_job(Ended.CANCELLED, 0.0)
    peer.conversation.lost()
    if gate.held_bytes or gate.waiting or gate.standing.inflight:
        raise Broken(f"something is left: {gate.held_bytes} bytes, {gate.waiting} waiting, {gate.standing}")


if __name__ == "__main__":
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
