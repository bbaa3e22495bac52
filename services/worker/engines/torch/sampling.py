"""Token sampling that depends only on the logits, the request's seed and the position.

The Gumbel-max trick (Gumbel 1954): with g_v independent standard Gumbel variables,

    argmax_v (logit_v / T + g_v)    is a sample from    softmax(logit / T),

and argmax_v (logit_v + T * g_v) is the same token, without a division, and greedy at T = 0. So one argmax serves greedy
and sampled rows, and only sampled rows need noise.

g is a hash of (seed, tokens so far, v): the finalizer of SplitMix64 (Steele, Lea, Flood, OOPSLA'14), in PyTorch's
wrapping int64. It does not depend on the row, the other sequences, or a repetition of the step.

Top-p keeps the smallest set of tokens whose probability reaches p (Holtzman et al., ICLR'20); only rows that ask for it
are sorted.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

GOLDEN = 0x9E3779B97F4A7C15
MULTIPLIERS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
SHIFTS = (30, 27, 31)
MIN_TEMPERATURE = 1e-4  # avoids overflow in the division; sampling is greedy far above this
UNIFORM_BITS = 31  # float32 holds these exactly near 0, where u decides the maximum
ALMOST_ONE = 1 - 2**-24


@dataclass(frozen=True, slots=True)
class TokenSampling:
    """How a request's tokens are chosen. `temperature` 0 is greedy."""

    temperature: float
    top_p: float
    seed: int


@dataclass(frozen=True, slots=True)
class Row:
    """A sampled row of a step's logits. `position` is the number of tokens that the answer has."""

    index: int
    sampling: TokenSampling
    position: int


def perturbed(logits: torch.Tensor, rows: list[Row]) -> torch.Tensor:
    """The logits [n, vocabulary] with noise in the given rows, so that the argmax of each is a sample."""
    if not rows:
        return logits
    index = torch.tensor([row.index for row in rows], device=logits.device)
    temperature = _column([row.sampling.temperature for row in rows], logits)
    chosen = _nucleus(logits[index], temperature, [row.sampling.top_p for row in rows])
    noise = gumbel([_key(row.sampling.seed, row.position) for row in rows], logits.shape[-1], logits.device)
    return logits.index_copy(0, index, chosen + temperature * noise)


def gumbel(keys: list[int], vocabulary: int, device: torch.device) -> torch.Tensor:
    """Standard Gumbel noise [keys, vocabulary], a function of the key and the vocabulary index."""
    rows = torch.tensor([_signed(key) for key in keys], dtype=torch.int64, device=device)
    columns = torch.arange(1, vocabulary + 1, dtype=torch.int64, device=device) * _signed(GOLDEN)
    bits = _unsigned_shift(_mix(rows[:, None] + columns), 64 - UNIFORM_BITS)
    uniform = ((bits.float() + 0.5) * 2.0**-UNIFORM_BITS).clamp(max=ALMOST_ONE)
    return -(-torch.log1p(-uniform)).log()


def _nucleus(logits: torch.Tensor, temperature: torch.Tensor, top_p: list[float]) -> torch.Tensor:
    """The logits with -inf outside each row's nucleus."""
    narrow = [row for row, share in enumerate(top_p) if share < 1]
    if not narrow:
        return logits
    index = torch.tensor(narrow, device=logits.device)
    scores = logits[index] / temperature[index].clamp(min=MIN_TEMPERATURE)
    probability, order = scores.softmax(-1).sort(-1, descending=True)
    before = probability.cumsum(-1) - probability
    outside = before >= _column([top_p[row] for row in narrow], logits)
    outside[:, 0] = False
    outside = torch.zeros_like(outside).scatter(-1, order, outside)
    return logits.index_copy(0, index, logits[index].masked_fill(outside, -torch.inf))


def _column(values: list[float], like: torch.Tensor) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32, device=like.device)[:, None]


def _key(seed: int, position: int) -> int:
    """64 bits from a seed of any size and a position."""
    return _mixed_int(_mixed_int(seed) + position)


def _mixed_int(value: int) -> int:
    """SplitMix64's step in Python integers."""
    z = (value + GOLDEN) % 2**64
    for shift, multiplier in zip(SHIFTS, (*MULTIPLIERS, 1), strict=True):
        z = ((z ^ (z >> shift)) * multiplier) % 2**64
    return z


def _mix(z: torch.Tensor) -> torch.Tensor:
    """SplitMix64's finalizer in tensors."""
    for shift, multiplier in zip(SHIFTS, (*MULTIPLIERS, 1), strict=True):
        z = (z ^ _unsigned_shift(z, shift)) * _signed(multiplier)
    return z


def _unsigned_shift(z: torch.Tensor, bits: int) -> torch.Tensor:
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value
