"""Restarting an engine that died or hung: at once, then after growing pauses, without a limit.

The jitter keeps replicas on one host from loading their models in step.
"""

from __future__ import annotations

import asyncio
import random

from services.runtime.log import Log
from services.worker.engine_executor import EngineDied, EngineExecutor, EngineUnusable

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0
SPREAD = 0.2


async def restart_engine(executor: EngineExecutor, log: Log, chance: random.Random) -> None:
    """Return when the executor has an engine again."""
    pause_s = FIRST_PAUSE_S
    while not await _restarted(executor, log):
        await asyncio.sleep(pause_s * (1 + chance.uniform(0, SPREAD)))
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
    log.info("the engine is ready again", engine=executor.description)


async def _restarted(executor: EngineExecutor, log: Log) -> bool:
    try:
        await executor.restart()
    except (EngineDied, EngineUnusable) as error:
        log.error("the engine could not be restarted", why=str(error))
        return False
    return True
