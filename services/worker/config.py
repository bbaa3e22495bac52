"""Settings of an inference worker."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from services.runtime.settings import ServiceSettings

MIN_CONTEXT_TOKENS = 128  # less could not hold a question
SIMULATED_MODEL = "weir-sim"
SIMULATED_CONTEXT_TOKENS = 32_768
SIMULATED_KV_TOKENS = 262_144
MAX_TOKENS = 2**31


class WorkerSettings(ServiceSettings):
    """One worker: its engine, slots and queue."""

    worker_port: int = Field(8010, ge=0, le=65535, description="port of the worker")
    metrics_port: int = Field(9010, ge=0, le=65535, description="port of the worker's metrics listener")
    worker_name: str = Field(
        "worker-0",
        pattern=r"^[A-Za-z0-9._:-]{1,64}$",
        description="unique name of the worker",
    )
    lab_network: bool = Field(False, description="only this machine reaches METRICS_HOST: faults may be set there")
    engine: Literal["simulated", "torch"] = Field("simulated", description="what computes the answers")
    model_name: str = Field(
        "", max_length=128, description="announced model; empty for weir-sim, or the last part of MODEL_ID"
    )
    batching: Literal["continuous", "static"] = Field(
        "continuous", description="continuous: sequences join at every step; static: whole batches, for experiments"
    )
    max_batch_size: int = Field(8, ge=1, le=256, description="most sequences that share a step: the worker's slots")
    batch_timeout_ms: float = Field(
        10.0, ge=0, le=60_000, description="milliseconds a static batch waits to fill; unused when continuous"
    )
    worker_queue_size: int = Field(8, ge=1, le=1024, description="most requests queued for a slot")
    stream_buffer_tokens: int = Field(
        256, ge=1, le=65_536, description="how far a slow reader may fall behind before its answer is dropped, tokens"
    )

    max_body_bytes: int = Field(16_777_216, ge=1024, le=268_435_456, description="largest request body accepted, bytes")

    max_context_tokens: int = Field(
        0,
        ge=0,
        le=MAX_TOKENS,
        description="most tokens of a prompt and its answer; 0: the model's, or 32768 when simulated",
    )
    kv_tokens: int = Field(
        0, ge=0, le=MAX_TOKENS, description="token memory of running sequences; 0: what fits, or 262144 when simulated"
    )
    prefill_chunk_tokens: int = Field(
        0, ge=0, le=MAX_TOKENS, description="most prompt tokens per step; 0: as many as double its time"
    )
    engine_stall_s: float = Field(
        30.0, gt=0, le=3600, description="longest step before the engine is replaced, seconds"
    )
    engine_start_s: float = Field(600.0, gt=0, le=36_000, description="longest time to load a model, seconds")

    model_id: str = Field("tiny", min_length=1, max_length=512, description="model of the torch engine")
    model_revision: str = Field("main", min_length=1, max_length=128, description="revision of a hub model")
    model_cache_dir: str = Field("", max_length=4096, description="folder of models; empty: ~/.cache/weir/models")
    device: str = Field("auto", pattern=r"^(auto|cpu|cuda(:\d{1,3})?)$", description="device of the torch engine")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto", description="number format of the torch engine"
    )
    torch_threads: int = Field(1, ge=1, le=1024, description="processor threads of the torch engine")

    sim_step_ms: float = Field(20.0, ge=0, le=60_000, description="fixed time of a step, milliseconds")
    sim_step_per_sequence_ms: float = Field(
        0.5, ge=0, le=10_000, description="time per running sequence in a step, milliseconds"
    )
    sim_prefill_ms_per_token: float = Field(
        0.2, ge=0, le=10_000, description="time per prompt token in a step, milliseconds"
    )
    sim_time_scale: float = Field(
        1.0, gt=0, le=1000, description="factor on all simulated times: 0.1 is ten times faster"
    )
    sim_jitter: float = Field(0.0, ge=0, lt=1, description="half-width of a step's random error, as a share of it")
    sim_seed: int = Field(0, description="seed of the simulated randomness")
    sim_slow_factor: float = Field(1.0, ge=1, le=1000, description="fault: factor on every step")
    sim_hang_after: int = Field(0, ge=0, description="fault: tokens after which a step never ends; 0 for never")
    sim_die_after: int = Field(0, ge=0, description="fault: answers after which the process ends; 0 for never")
    sim_garbage: float = Field(0.0, ge=0, le=1, description="fault: share of answers with an unreadable last line")
    sim_poison: str = Field("", max_length=1024, description="fault: text in a prompt that ends the process")

    @property
    def announced_model(self) -> str:
        """The model's name on the wire."""
        if self.model_name or self.engine == "simulated":
            return self.model_name or SIMULATED_MODEL
        return "weir-tiny" if self.model_id == "tiny" else re.split(r"[/\\]", self.model_id.rstrip("/\\"))[-1]

    @property
    def sim_context_tokens(self) -> int:
        """Longest prompt and answer of one sequence of the simulated engine, in tokens."""
        return min(self.max_context_tokens or SIMULATED_CONTEXT_TOKENS, self.sim_kv_tokens)

    @property
    def sim_kv_tokens(self) -> int:
        """KV memory of the simulated engine, in tokens."""
        return self.kv_tokens or SIMULATED_KV_TOKENS

    def contradictions(self) -> Iterator[str]:
        """Settings that are valid alone but not together."""
        yield from super().contradictions()
        yield from self.inner_faults("HOST", "METRICS_HOST")
        for name, tokens in (("KV_TOKENS", self.kv_tokens), ("MAX_CONTEXT_TOKENS", self.max_context_tokens)):
            if 0 < tokens < MIN_CONTEXT_TOKENS:
                yield f"{name}={tokens} could not hold a question: at least {MIN_CONTEXT_TOKENS}, or 0"
        if self.engine == "simulated":
            yield from self._sim_faults()

    def _sim_faults(self) -> Iterator[str]:
        if self.sim_step_ms + self.sim_step_per_sequence_ms <= 0:
            yield "SIM_STEP_MS and SIM_STEP_PER_SEQUENCE_MS are both 0: a step must take some time"
        elif self._longest_sim_step_s() >= self.engine_stall_s:
            yield (
                f"a simulated step may take {math.ceil(self._longest_sim_step_s())} s and "
                f"ENGINE_STALL_S={self.engine_stall_s:g}: the engine would be replaced for being slow"
            )

    def _longest_sim_step_s(self) -> float:
        decode_ms = self.sim_step_ms + self.sim_step_per_sequence_ms * self.max_batch_size
        reading_ms = self.prefill_chunk_tokens * self.sim_prefill_ms_per_token or decode_ms
        error = 1 + self.sim_jitter
        return (decode_ms + reading_ms) * error * self.sim_time_scale * self.sim_slow_factor / 1000
