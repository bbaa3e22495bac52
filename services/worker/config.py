"""Settings of an inference worker."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from services.runtime.settings import ServiceSettings

MIN_CONTEXT_TOKENS = 128  # a slot with less could not hold a question


class WorkerSettings(ServiceSettings):
    """One worker: one engine, its slots, and the line before them."""

    worker_port: int = Field(8010, ge=0, le=65535, description="port of the worker")
    metrics_port: int = Field(9010, ge=0, le=65535, description="port of the worker's metrics listener")
    worker_name: str = Field(
        "worker-0",
        pattern=r"^[A-Za-z0-9._:-]{1,64}$",
        description="name it announces and logs",
    )
    engine: Literal["simulated"] = Field("simulated", description="what computes the answers")
    model_name: str = Field("weir-sim", min_length=1, max_length=128, description="model it announces")
    batching: Literal["continuous", "static"] = Field(
        "continuous", description="continuous: join at every step; static: whole batches, for the experiment"
    )
    max_batch_size: int = Field(8, ge=1, le=256, description="most sequences that share a step: the worker's slots")
    batch_timeout_ms: float = Field(
        10.0, ge=0, le=60_000, description="milliseconds a static batch waits to fill; unused when continuous"
    )
    worker_queue_size: int = Field(8, ge=1, le=1024, description="most requests waiting for a slot")
    stream_buffer_tokens: int = Field(
        256, ge=1, le=65_536, description="tokens a slow reader may be behind before its answer is dropped"
    )
    sim_step_ms: float = Field(20.0, ge=0, le=60_000, description="milliseconds of a step, whatever is in it")
    sim_step_per_sequence_ms: float = Field(
        0.5, ge=0, le=10_000, description="milliseconds each running sequence adds to a step"
    )
    sim_prefill_ms_per_token: float = Field(
        0.1, ge=0, le=10_000, description="milliseconds each prompt token adds to its first step"
    )
    sim_time_scale: float = Field(
        1.0, gt=0, le=1000, description="factor on all simulated times: 0.1 is ten times faster"
    )
    sim_jitter: float = Field(0.0, ge=0, lt=1, description="half-width of a step's random error, as a share of it")
    sim_kv_tokens: int = Field(
        262_144, ge=1024, le=2**31, description="token memory, shared equally by the slots: bounds prompt + answer"
    )
    sim_seed: int = Field(0, description="seed of the simulated chance")

    @model_validator(mode="after")
    def _can_work(self) -> Self:
        faults = []
        if self.sim_step_ms + self.sim_step_per_sequence_ms <= 0:
            faults.append("SIM_STEP_MS and SIM_STEP_PER_SEQUENCE_MS are both 0: a step must take some time")
        if self.sim_kv_tokens // self.max_batch_size < MIN_CONTEXT_TOKENS:
            least = MIN_CONTEXT_TOKENS * self.max_batch_size
            faults.append(
                f"SIM_KV_TOKENS={self.sim_kv_tokens} is too little for MAX_BATCH_SIZE slots: at least {least}"
            )
        if faults:
            raise ValueError("; ".join(faults))
        return self
