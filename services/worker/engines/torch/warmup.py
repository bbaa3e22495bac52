"""The first steps of an engine: they prove that the model can be batched, and say how long a step takes.

Measured are a decode step with every slot taken (a + b * slots) and a step that reads a chunk as well; the difference
is what reading costs (c per token). An automatic chunk is what costs as much as the decode step, so that a step with
reading takes at most about twice a step without:   (a + b * slots) / c   tokens.
"""

from __future__ import annotations

from statistics import median

from services.contracts.generate import GenerateRequest
from services.worker.engine import Expected
from services.worker.engines.torch.engine import MIN_CHUNK_TOKENS, Prompted, TorchEngine

STEPS = 4
PROMPT_TOKENS = 8
"""Of those that write during the measurement."""
TRIAL_CHUNK_TOKENS = 128


def warm_up(engine: TorchEngine, *, chunk_tokens: int, most_tokens: int, thorough: bool) -> None:
    """Set the engine's `expected` and its chunk; `chunk_tokens` 0 chooses one of at most `most_tokens`."""
    engine.prefill_chunk_tokens = chunk_tokens or min(TRIAL_CHUNK_TOKENS, most_tokens)
    if not thorough:
        _one_answer(engine)
        return
    decode_s, prefill_s_per_token = _measured(engine)
    engine.expected = Expected(1000 * decode_s, 1000 * prefill_s_per_token)
    if not chunk_tokens:
        as_long_as_a_step = int(decode_s / max(prefill_s_per_token, 1e-9))
        engine.prefill_chunk_tokens = max(MIN_CHUNK_TOKENS, min(as_long_as_a_step, most_tokens))


def _one_answer(engine: TorchEngine) -> None:
    _admit(engine, 1, PROMPT_TOKENS)
    while engine.running:
        engine.step()


def _measured(engine: TorchEngine) -> tuple[float, float]:
    """Seconds of a decode step with every slot taken, and what a prompt token adds to one."""
    each = PROMPT_TOKENS + STEPS + 2
    count = max(1, min(engine.slots, engine.kv_tokens // each - 1))
    writing = [_admit(engine, number, PROMPT_TOKENS) for number in range(count)]
    while any(sequence.unread_tokens for sequence in writing):
        engine.step()
    decode_s = median(engine.step().duration_s for _ in range(STEPS))
    engine.drop(writing[-1])
    room = engine.kv_tokens - each * (count - 1) - STEPS - 2
    prompt_tokens = min(engine.prefill_chunk_tokens, engine.context_tokens - STEPS - 2, room)
    _admit(engine, count, prompt_tokens)
    step = engine.step()
    prefill_s = max(0.0, step.duration_s - decode_s)
    while engine.running:
        engine.step()
    return decode_s, prefill_s / max(1, step.prefill_tokens)


def _admit(engine: TorchEngine, number: int, prompt_tokens: int) -> Prompted:
    request = GenerateRequest(
        id=f"warm-up-{number}", tenant="", deadline_ms=1, max_tokens=STEPS + 2, prompt="", temperature=0.0, seed=0,
        ignore_eos=True,
    )  # fmt: skip
    prompt = tuple((number + place) % 64 for place in range(prompt_tokens))
    sequence = Prompted(request, prompt_tokens, unread_tokens=prompt_tokens, prompt_ids=prompt)
    engine.admit(sequence)
    return sequence
