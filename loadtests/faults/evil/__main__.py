"""`python -m loadtests.faults.evil --kind weir --port 8030`: a byzantine worker as a process.

A share of its answers is right, so that it stays in use; the rest are tricks drawn from the whole table.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable
from random import Random

from loadtests.faults.evil.row import BOTH
from loadtests.faults.evil.talk import Talk
from loadtests.faults.evil.tricks import ROWS
from loadtests.faults.evil.worker import EvilWorker, Trick, honest
from loadtests.faults.evil.worker import running as answering

UNTRACEABLE = ("another response behind its own, a moment later",)
"""A server that names no request and answers twice: with reused connections, no client can detect it."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m loadtests.faults.evil", description="A worker that misbehaves.")
    parser.add_argument("--kind", choices=BOTH, default="weir")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--model", default="weir-sim")
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--share", type=float, default=0.5, help="share of its answers that are tricks")
    parser.add_argument("--seed", type=int, default=1)
    wanted = parser.parse_args()
    worker = EvilWorker(
        wanted.kind, _drawn(wanted.kind, wanted.share, Random(wanted.seed)), model=wanted.model, slots=wanted.slots
    )
    asyncio.run(_serve(worker, wanted.port))


def _drawn(kind: str, share: float, chance: Random) -> Callable[[Talk], Trick]:
    left_out = UNTRACEABLE if kind == "openai" else ()
    tricks = [row.act for row in ROWS if kind in row.kinds and row.name not in left_out]

    def choose(talk: Talk) -> Trick:
        return chance.choice(tricks) if chance.random() < share else honest

    return choose


async def _serve(worker: EvilWorker, port: int) -> None:
    async with answering(worker, port):
        await asyncio.Event().wait()


if __name__ == "__main__":
    main()
