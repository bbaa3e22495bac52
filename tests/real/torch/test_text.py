"""Prompts to tokens, and tokens to text in pieces that are the whole when joined."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs the extra `torch`")
pytest.importorskip("transformers", reason="needs the extra `torch`")

from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from services.contracts.generate import Message
from services.runtime.errors import BadInput
from services.worker.engines.torch.text import REPLACEMENT, Decode, Detokenizer, Prompts, decoder, plain_chat
from tests.real.torch.rig import ask, prompt_of

texts = st.text(st.characters(exclude_categories=["Cs"])) | st.lists(
    st.sampled_from(["🙂", "👩‍👩‍👧", "你好", "é", "नमस्ते", "a", " the queue", "\n", "𝔘", "🇪🇺", " ", "﻿"])
).map("".join)


@pytest.fixture(scope="module")
def tokenizer(tiny_folder: Path) -> Any:
    return AutoTokenizer.from_pretrained(tiny_folder)


@pytest.fixture(scope="module")
def byte_fallback() -> Tokenizer:
    """As in Llama 2: pieces with a mark for the space, and a token for every byte of what is not in the vocabulary."""
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁the", "▁queue", "▁", "a", "é", "s"]
    tokenizer = Tokenizer(
        models.BPE({piece: id for id, piece in enumerate(pieces)}, [], unk_token="<unk>", byte_fallback=True)
    )
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer


def pieces(decode: Decode, ids: list[int]) -> list[str]:
    text = Detokenizer(decode)
    return [*(text.push(id) for id in ids), text.flush()]


@given(text=texts)
def test_the_pieces_of_an_answer_are_the_whole_and_no_character_is_shown_by_halves(tokenizer: Any, text: str) -> None:
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    shown = pieces(tokenizer.backend_tokenizer.decode, ids)
    assert "".join(shown) == text
    assert "".join(shown).count(REPLACEMENT) == text.count(REPLACEMENT)
    assert shown[-1] in ("", REPLACEMENT * text.count(REPLACEMENT))


@given(ids=st.lists(st.integers(0, 2047), max_size=60))
def test_whatever_tokens_a_model_writes_the_pieces_are_the_decoded_whole(tokenizer: Any, ids: list[int]) -> None:
    decode = tokenizer.backend_tokenizer.decode
    assert "".join(pieces(decode, ids)) == decode(ids)


@given(words=st.lists(st.sampled_from(["▁the", "▁queue", "▁", "a", "é", "s", *"你好🙂नᄒ"]), max_size=12))
def test_a_vocabulary_with_bytes_for_rare_characters_is_shown_whole_too(
    byte_fallback: Tokenizer, words: list[str]
) -> None:
    ids: list[int] = []
    for word in words:
        known = byte_fallback.token_to_id(word)
        ids += [known] if known is not None else [byte + 1 for byte in word.encode()]
    shown = "".join(pieces(byte_fallback.decode, ids))
    assert shown == byte_fallback.decode(ids)
    assert REPLACEMENT not in shown


def test_half_a_character_waits_for_the_other_half(tokenizer: Any) -> None:
    decode = tokenizer.backend_tokenizer.decode
    text = Detokenizer(decode)
    ids = tokenizer("🙂", add_special_tokens=False)["input_ids"]
    assert len(ids) > 1
    assert [text.push(id) for id in ids] == [""] * (len(ids) - 1) + ["🙂"]
    assert text.push(ids[0]) == ""
    assert text.flush() == REPLACEMENT
    assert text.flush() == ""


def test_a_long_run_of_broken_bytes_does_not_grow_without_end(tokenizer: Any) -> None:
    broken = tokenizer("🙂", add_special_tokens=False)["input_ids"][0]
    longest = 0

    def decode(ids: list[int]) -> str:
        nonlocal longest
        longest = max(longest, len(ids))
        text: str = tokenizer.backend_tokenizer.decode(ids)
        return text

    shown = "".join(pieces(decode, [broken] * 1000))
    assert longest < 200
    assert set(shown) == {REPLACEMENT}


def test_special_tokens_have_no_text(tokenizer: Any) -> None:
    ids = [*tokenizer("a queue")["input_ids"], tokenizer.eos_token_id]
    assert "".join(pieces(tokenizer.backend_tokenizer.decode, ids)) == "a queue"


def test_a_model_without_a_template_gets_plain_lines(tokenizer: Any) -> None:
    bare = PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend_tokenizer, bos_token=tokenizer.bos_token)
    messages = [Message("system", "Be brief."), Message("user", "Why?")]
    assert plain_chat(messages) == "system: Be brief.\nuser: Why?\nassistant:"
    ids = Prompts(bare, 100).ids(ask(messages=messages))
    assert ids == tokenizer(plain_chat(messages))["input_ids"]


def test_an_empty_prompt_is_the_begin_token_or_refused_where_there_is_none(tokenizer: Any) -> None:
    assert Prompts(tokenizer, 100).ids(ask(prompt="")) == [tokenizer.bos_token_id]
    plain = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    plain.post_processor = None  # type: ignore[assignment]
    nameless = PreTrainedTokenizerFast(tokenizer_object=plain)
    with pytest.raises(BadInput, match="no tokens"):
        Prompts(nameless, 100).ids(ask(prompt=""))


def test_half_a_surrogate_pair_is_bad_input(tokenizer: Any) -> None:
    with pytest.raises(BadInput, match="cannot be tokenized"):
        Prompts(tokenizer, 100).ids(ask(prompt="\ud83d"))


def test_prompts_can_be_tokenized_by_many_threads_while_answers_are_decoded(tokenizer: Any) -> None:
    prompts, decode = Prompts(tokenizer, 2000), decoder(tokenizer)
    expected = prompts.ids(ask(prompt=prompt_of(300)))
    faults: list[Exception] = []

    def tokenize() -> None:
        try:
            for _ in range(40):
                assert prompts.ids(ask(prompt=prompt_of(300))) == expected
        except Exception as error:
            faults.append(error)

    threads = [threading.Thread(target=tokenize) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert "".join(pieces(decode, expected)) == prompt_of(300)
    assert not faults
