"""A tokenizer in transformers' form: `python tinytokenizer.py FOLDER`. Each byte is a token."""

from __future__ import annotations

import sys

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

END = "<|end|>"


def build(folder: str) -> None:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={END: 0, **{one: i for i, one in enumerate(alphabet, 1)}}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, pad_token=END, bos_token=END)
    fast.save_pretrained(folder)


if __name__ == "__main__":
    build(sys.argv[1])
