"""A small Llama of random weights as a GGUF file, for llama.cpp: `python tinygguf.py FILE`, where `gguf` is installed.

The vocabulary is every byte, a few words and the chat's markers, so any text can be read, and nothing is downloaded.
"""

from __future__ import annotations

import sys

import gguf
import numpy as np

HIDDEN, LAYERS, HEADS, KV_HEADS, WIDE, CONTEXT = 128, 4, 4, 2, 384, 2048
CERTAIN = 20.0
"""The model writes ASCII alone: llama-cpp-python reads its whole answer anew after each half of a character."""
BEGIN, END = "<|begin|>", "<|end|>"
MARKERS = (BEGIN, END, "<|system|>", "<|user|>", "<|assistant|>")
WORDS = ("the", "and", "weir", "water", "holds")
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + eos_token }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def byte_symbols() -> list[str]:
    """The printable symbol of each byte in a byte-level vocabulary, as GPT-2 chose them."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    symbols = {byte: chr(byte) for byte in plain} | {byte: chr(256 + i) for i, byte in enumerate(others)}
    return [symbols[byte] for byte in range(256)]


def vocabulary() -> tuple[list[str], list[str]]:
    """(tokens, merges): each word is merged from its letters, from the left."""
    tokens, merges = [*MARKERS, *byte_symbols()], []
    for word in WORDS:
        for end in range(1, len(word)):
            if word[: end + 1] not in tokens:
                merges.append(f"{word[:end]} {word[end]}")
                tokens.append(word[: end + 1])
    return tokens, merges


def write(path: str) -> None:
    tokens, merges = vocabulary()
    chance = np.random.default_rng(1)

    def matrix(rows: int, columns: int) -> np.ndarray:
        return chance.normal(0.0, 0.1, (rows, columns)).astype(np.float32)

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(WIDE)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer.add_token_types([control if token in MARKERS else normal for token in tokens])
    writer.add_token_merges(merges)
    writer.add_bos_token_id(MARKERS.index(BEGIN))
    writer.add_eos_token_id(MARKERS.index(END))
    writer.add_add_bos_token(True)
    writer.add_chat_template(TEMPLATE)
    ones, kv = np.ones(HIDDEN, dtype=np.float32), HIDDEN * KV_HEADS // HEADS
    writer.add_tensor("token_embd.weight", matrix(len(tokens), HIDDEN))
    for layer in range(LAYERS):
        shapes = {
            "attn_q": (HIDDEN, HIDDEN), "attn_k": (kv, HIDDEN), "attn_v": (kv, HIDDEN), "attn_output": (HIDDEN, HIDDEN),
            "ffn_gate": (WIDE, HIDDEN), "ffn_up": (WIDE, HIDDEN), "ffn_down": (HIDDEN, WIDE),
        }  # fmt: skip
        for name, shape in shapes.items():
            writer.add_tensor(f"blk.{layer}.{name}.weight", matrix(*shape))
        for norm in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{norm}.weight", ones)
    writer.add_tensor("output_norm.weight", ones)
    output = matrix(len(tokens), HIDDEN)
    output[[i for i, token in enumerate(tokens) if token.isascii() and token not in MARKERS]] *= CERTAIN
    writer.add_tensor("output.weight", output)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    write(sys.argv[1])
