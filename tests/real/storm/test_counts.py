"""The ledger of a run and the counters of a real router are the same figures; so is what each scenario is for."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from services.router.app import build as build_router
from services.router.config import RouterSettings
from services.runtime.serve import running
from services.worker.app import build as build_worker
from services.worker.config import WorkerSettings
from tests.real.storm.stand import FakeRouter, Stand, run, standing


@asynccontextmanager
async def before_a_real_router(folder: Path, **worker: Any) -> AsyncIterator[Stand]:
    """Two fast workers, a router before them, and the bench's process before that."""
    async with AsyncExitStack() as stack:
        ports = []
        for number in range(2):
            chosen = {"sim_time_scale": 0.5, "worker_name": f"worker-{number}", "log_level": "ERROR", **worker}
            process = build_worker(WorkerSettings(_env_file=None, worker_port=0, metrics_port=0, **chosen))
            await stack.enter_async_context(running(process))
            stack.callback(process.log.close)
            ports.append((process.bound_port, process.bound_metrics_port))
        workers = ",".join(f"http://127.0.0.1:{port}" for port, _ in ports)
        router = build_router(
            RouterSettings(
                _env_file=None, router_port=0, metrics_port=0, workers=workers, log_level="ERROR", drain_timeout_s=0.5
            )  # type: ignore[call-arg]
        )
        await stack.enter_async_context(running(router))
        stack.callback(router.log.close)
        settings = {
            "STORM_ROUTER_URL": f"http://127.0.0.1:{router.bound_port}",
            "STORM_METRICS_URL": f"http://127.0.0.1:{router.bound_metrics_port}",
            "STORM_FAULT_URLS": ",".join(f"http://127.0.0.1:{port}" for _, port in ports),
            "WORKERS": workers,
        }
        yield await stack.enter_async_context(standing(folder, FakeRouter(), workers=0, **settings))


def test_what_the_ledger_says_is_what_the_router_counted(tmp_path: Path):
    async def main() -> None:
        async with before_a_real_router(tmp_path) as stand:
            told = await stand.whole_run("burst", intensity=6, seconds=10)
            assert told["ended"] == "done"
            assert told["refused"] > 100
            counted = dict(told["router_counted"])
            assert counted.pop("served") == told["on_time"] + told["late"]
            assert counted.pop("client_gone", 0) == told["gone"]
            assert counted == told["refused_by_code"] | told["failed_by_code"]
            assert told["policy"] == {"admission": True, "fairness": True, "cancellation": True}
            assert max(second["waiting"] or 0 for second in told["series"]) > 0
            assert told["wasted_share"] is not None

    run(main)


def test_what_left_was_counted_as_gone_by_both(tmp_path: Path):
    async def main() -> None:
        async with before_a_real_router(tmp_path, sim_time_scale=3.0) as stand:
            told = await stand.whole_run("steady", leaving=100, intensity=0.4, seconds=10)
            counted = dict(told["router_counted"])
            assert told["gone"] > 5
            assert set(counted) == {"client_gone"}
            # on a busy machine somebody may leave before the router has read what they sent
            assert 0.8 * told["gone"] <= counted["client_gone"] <= told["gone"] == told["sent"]

    run(main)
