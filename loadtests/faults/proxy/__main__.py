"""`python -m loadtests.faults.proxy --listen 15432 --to 127.0.0.1:5432 --control 7001`: a proxy with faults on demand.

Then `echo freeze | nc 127.0.0.1 7001`. `--fault` sets the first fault.
"""

from __future__ import annotations

import argparse
import asyncio

from loadtests.faults.proxy.control import controlled
from loadtests.faults.proxy.fault import Fault, read
from loadtests.faults.proxy.proxy import HOST, FaultProxy


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m loadtests.faults.proxy", description="A TCP proxy that fails.")
    parser.add_argument("--listen", type=int, default=0, help="port on loopback; 0: any free one")
    parser.add_argument("--to", type=_address, required=True, metavar="HOST:PORT")
    parser.add_argument("--control", type=int, default=0, help="port on loopback for one fault per line; 0: any free")
    parser.add_argument("--fault", type=_fault, default="healthy", help="the first fault, as a control line")
    parser.add_argument("--connections", type=int, default=256, help="most open connections")
    parser.add_argument("--seed", type=int, default=1, help="seed of the jitter")
    asyncio.run(_serve(parser.parse_args()))


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host.strip("[]") or HOST, int(port)


def _fault(line: str) -> Fault:
    try:
        return read(line)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


async def _serve(wanted: argparse.Namespace) -> None:
    proxy = FaultProxy(*wanted.to, listen=wanted.listen, connections=wanted.connections, seed=wanted.seed)
    async with proxy, controlled(proxy, wanted.control) as port:
        await proxy.become(wanted.fault)
        print(f"listening on {HOST}:{proxy.port}, control on {HOST}:{port}", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    main()
