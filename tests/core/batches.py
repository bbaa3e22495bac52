"""What the tests of the batch former share."""

from __future__ import annotations

from services.core.batcher import BatchFormer, Batching, Waiting


def former(batching: Batching = Batching.CONTINUOUS, **sizes: float) -> BatchFormer[str]:
    given = {"slots": 2, "queue_size": 3, "window_s": 0.01, **sizes}
    return BatchFormer(
        batching, slots=int(given["slots"]), queue_size=int(given["queue_size"]), window_s=given["window_s"]
    )


def waiting(
    id: str,
    arrived_at: float = 0.0,
    deadline: float = 100.0,
    service_s: float = 0.0,
    *,
    tokens: int = 0,
    ready_s: float = 0.0,
) -> Waiting[str]:
    return Waiting(id, arrived_at, deadline, id, service_s, tokens, ready_s)


def ids(batch: tuple[Waiting[str], ...]) -> list[str]:
    return [member.id for member in batch]
