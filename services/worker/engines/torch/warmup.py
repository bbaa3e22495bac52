"""An engine's first steps: they check that the model can be batched, and measure its speed.

Decode with every slot taken lasts a + b * slots; what a chunk adds gives c per token. An automatic chunk starts at (a +
b * slots) / c tokens, so that a step at most about doubles; then `steady` adapts it.
"""

from __future__ import annotations

from typing import Any

import torch

from services.contracts.generate import GenerateRequest
from services.worker.engine import Expected
from services.worker.engines.torch.engine import MIN_CHUNK_TOKENS, Prompted, TorchEngine
from services.worker.engines.torch.steady import SteadySteps

STEPS, CHUNKS = 4, 3
PROMPT_TOKENS = 8
"""Prompt of each decoding sequence."""
MAX_TOKENS = STEPS + CHUNKS + 2
EACH_TOKENS = PROMPT_TOKENS + MAX_TOKENS
TRIAL_CHUNK_TOKENS = 128
TRIAL_TOKENS = 24
"""Prompt of the check: more than one chunk and more than one page."""
DOUBTFUL_DEVIATIONS = 0.5
"""Standard deviations of a row's logits. Rounding moves them by a few hundredths, a wrong result by several."""


def warm_up(engine: TorchEngine, *, chunk_tokens: int, max_chunk_tokens: int, measure: bool) -> None:
    """Set the engine's `expected` and its chunk. `chunk_tokens` 0 chooses one of at most `max_chunk_tokens`."""
    engine.prefill_chunk_tokens = chunk_tokens or min(TRIAL_CHUNK_TOKENS, max_chunk_tokens)
    if not measure:
        return
    decode_s, prefill_s_per_token = _measured(engine)
    engine.expected = Expected(1000 * decode_s, 1000 * prefill_s_per_token)
    if not chunk_tokens:
        max_tokens = max(MIN_CHUNK_TOKENS, max_chunk_tokens)
        tokens = int(decode_s / max(prefill_s_per_token, 1e-9))  # takes as long as a decode step
        engine.steady = SteadySteps(decode_s, tokens=tokens, min_tokens=MIN_CHUNK_TOKENS, max_tokens=max_tokens)
        engine.prefill_chunk_tokens = engine.steady.tokens


def doubted(engine: TorchEngine, model: Any) -> str:
    """Why the engine's steps cannot be trusted, or an empty text: chunked prefill is compared with one pass over the
    whole.

    A model with its own attention may silently ignore pages. Tokens may differ by rounding, but not be clearly worse
    than the best.
    """
    engine.prefill_chunk_tokens = MIN_CHUNK_TOKENS
    sequence = _admit(engine, 1, TRIAL_TOKENS)
    request = engine.request_of(sequence)
    while engine.running:
        engine.step()
    with torch.no_grad():
        ids = torch.tensor([[*sequence.prompt_ids, *request.generated_tokens]], device=model.device)
        whole = _logits(model, ids)[0, TRIAL_TOKENS - 1 : -1].float()
    chosen = whole.gather(-1, ids[0, TRIAL_TOKENS:, None])[:, 0]
    worse_by = (whole.max(-1).values - chosen) / whole.std(-1)
    if bool((worse_by <= DOUBTFUL_DEVIATIONS).all()):
        return ""
    return "its output with paged memory differs from its output without it"


def _logits(model: Any, ids: Any) -> Any:
    """Logits of a whole text without pages; a paged-only attention is replaced for the call."""
    attention = model.config._attn_implementation
    try:
        model.set_attn_implementation(attention.removeprefix("paged|"))
        return model(ids, use_cache=False).logits
    finally:
        model.set_attn_implementation(attention)


def _measured(engine: TorchEngine) -> tuple[float, float]:
    """Seconds of a decode step with every slot taken, and what each prompt token adds: minima, since noise only
    lengthens.
    """
    count = max(1, min(engine.slots, engine.kv_tokens // EACH_TOKENS - 1))
    writing = [_admit(engine, number, PROMPT_TOKENS) for number in range(count)]
    while any(sequence.unread_tokens for sequence in writing):
        engine.step()
    decode_s = min(engine.step().duration_s for _ in range(STEPS))
    engine.drop(writing[-1])
    room = min(engine.kv_tokens - EACH_TOKENS * (count - 1), engine.context_tokens) - MAX_TOKENS
    _admit(engine, count, min(CHUNKS * engine.prefill_chunk_tokens, room))
    read = []
    while engine.running:
        step = engine.step()
        if step.prefill_tokens:
            read.append((step.duration_s - decode_s) / step.prefill_tokens)
    return decode_s, max(0.0, min(read))


def _admit(engine: TorchEngine, number: int, prompt_tokens: int) -> Prompted:
    request = GenerateRequest(
        id=f"warm-up-{number}", tenant="", deadline_ms=1, max_tokens=MAX_TOKENS, prompt="", temperature=0.0, seed=0,
        ignore_eos=True,
    )  # fmt: skip
    prompt = tuple((number + place) % 64 for place in range(prompt_tokens))
    sequence = Prompted(request, prompt_tokens, unread_tokens=prompt_tokens, prompt_ids=prompt)
    engine.admit(sequence)
    return sequence
