"""The torch engine writes what the model alone would write, whoever shares its steps."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs the extra `torch`")
pytest.importorskip("transformers", reason="needs the extra `torch`")

from services.contracts.generate import Message
from services.runtime.errors import BadInput
from services.worker.engine import Sequence
from services.worker.engines.torch.engine import TorchEngine
from services.worker.engines.torch.paged import Computed
from tests.real.torch.rig import Plain, Rows, ask, join, make_engine, prompt_of, run

LENGTHS = (1, 2, 3, 7, 15, 16, 17, 31, 40, 64, 90, 5, 120, 33, 8, 200, 11, 48)


@pytest.fixture(scope="module")
def plain(tiny_folder: Path) -> Plain:
    return Plain(tiny_folder)


@pytest.fixture(scope="module")
def engine(tiny_folder: Path) -> TorchEngine:
    """Shared by tests that leave it empty."""
    return make_engine(tiny_folder)


@pytest.fixture(autouse=True)
def _left_empty(request: pytest.FixtureRequest) -> None:
    if "engine" in request.fixturenames:
        engine: TorchEngine = request.getfixturevalue("engine")
        assert engine.running == 0
        assert engine.kv_usage == 0.0


def test_greedy_answers_are_those_of_the_model_alone_whenever_they_join(engine: TorchEngine, plain: Plain) -> None:
    chance = random.Random(5)
    prompts = {f"r{number}": (prompt_of(words, number), 3 + 2 * number) for number, words in enumerate(LENGTHS)}
    joining = [
        (chance.randrange(40), engine.prepare(ask(id, prompt=prompt, max_tokens=tokens)))
        for id, (prompt, tokens) in prompts.items()
    ]
    record = run(engine, joining)
    for id, (prompt, tokens) in prompts.items():
        assert record.pieces[id] == plain.pieces(prompt, tokens), id
    assert max(step.batch_size for step in record.steps) == engine.slots


@pytest.mark.parametrize("chunk", [16, 50, 512])
def test_a_prompt_read_in_chunks_is_read_as_well_as_a_whole_one(tiny_folder: Path, plain: Plain, chunk: int) -> None:
    engine = make_engine(tiny_folder, prefill_chunk_tokens=chunk, slots=2)
    prompt = prompt_of(150)
    sequence = join(engine, "long", prompt=prompt, max_tokens=12)
    record = run(engine)
    assert record.pieces["long"] == plain.pieces(prompt, 12)
    read = [step.prefill_tokens for step in record.steps if step.prefill_tokens]
    assert sum(read) == sequence.prompt_tokens
    assert max(read) <= chunk
    assert len(read) == -(-sequence.prompt_tokens // chunk)


def test_a_step_reads_at_most_a_chunk_beside_those_that_write(engine: TorchEngine) -> None:
    rows = Rows(engine)
    writing = [join(engine, f"w{number}", max_tokens=30) for number in range(3)]
    while any(sequence.unread_tokens for sequence in writing):
        engine.step()
    long = join(engine, "long", prompt=prompt_of(150), max_tokens=1)
    before = [sequence.completion_tokens for sequence in writing]
    steps = 0
    while long.unread_tokens:
        step = engine.step()
        steps += 1
        assert step.prefill_tokens <= engine.prefill_chunk_tokens
        assert rows.counts[-1] == step.prefill_tokens + 3
    assert [sequence.completion_tokens for sequence in writing] == [count + steps for count in before]
    for sequence in writing:
        engine.drop(sequence)


def test_of_several_prompts_the_most_urgent_is_read_first(engine: TorchEngine) -> None:
    late = join(engine, "late", deadline=9.0, prompt=prompt_of(60), max_tokens=1)
    soon = join(engine, "soon", deadline=1.0, prompt=prompt_of(60), max_tokens=1)
    middle = join(engine, "middle", deadline=5.0, prompt=prompt_of(60), max_tokens=1)
    order = [sequence.id for step in run(engine).steps for sequence, _ in step.finished]
    assert order == ["soon", "middle", "late"]
    assert {late.unread_tokens, soon.unread_tokens, middle.unread_tokens} == {0}


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 5, 9])
def test_a_dropped_sequence_frees_its_slot_and_memory_at_once_and_is_not_computed_again(
    tiny_folder: Path, steps: int
) -> None:
    engine = make_engine(tiny_folder)
    rows = Rows(engine)
    stays = join(engine, "stays", prompt=prompt_of(3), max_tokens=30)
    engine.step()
    usage = engine.kv_usage
    goes = join(engine, "goes", prompt=prompt_of(100), max_tokens=30)
    for _ in range(steps):
        engine.step()
    engine.drop(goes)
    assert engine.running == 1
    assert engine.kv_usage == pytest.approx(usage, abs=1 / 64)
    engine.step()
    assert rows.counts[-1] == 1
    engine.drop(goes)  # once more is ignored
    again = join(engine, "goes", prompt="another", max_tokens=2)
    record = run(engine)
    assert again.completion_tokens == 2
    assert stays.completion_tokens == 30
    assert record.reasons == {"goes": "length", "stays": "length"}
    assert engine.kv_usage == 0.0


def test_what_was_dropped_leaves_no_trace_in_the_answers_of_others(engine: TorchEngine, plain: Plain) -> None:
    ghosts = [join(engine, f"ghost{number}", prompt=prompt_of(50, number), max_tokens=40) for number in range(4)]
    for _ in range(8):
        engine.step()
    kept = join(engine, "kept", prompt=prompt_of(20, 3), max_tokens=25)
    for ghost in ghosts:
        engine.drop(ghost)
        engine.step()
    tail = run(engine).pieces["kept"]
    assert plain.pieces(prompt_of(20, 3), 25)[-len(tail) :] == tail
    assert kept.completion_tokens == 25


def test_the_same_seed_gives_the_same_answer_whoever_else_is_there(engine: TorchEngine) -> None:
    sampled = {"prompt": prompt_of(9), "temperature": 0.9, "top_p": 0.8, "seed": 7, "max_tokens": 20}
    join(engine, "alone", **sampled)
    alone = run(engine).pieces["alone"]
    crowd = [(0, engine.prepare(ask(f"c{number}", temperature=1.0, max_tokens=30))) for number in range(4)]
    record = run(engine, [*crowd, (6, engine.prepare(ask("crowded", **sampled)))])
    assert record.pieces["crowded"] == alone
    join(engine, "other", **(sampled | {"seed": 8}))
    assert run(engine).pieces["other"] != alone


def test_requests_without_a_seed_differ_and_an_engine_with_the_same_seed_repeats_them(tiny_folder: Path) -> None:
    answers = []
    for _ in range(2):
        engine = make_engine(tiny_folder, seed=3)
        for id in ("a", "b"):
            join(engine, id, temperature=1.0, max_tokens=12)
        record = run(engine)
        assert record.text("a") != record.text("b")
        answers.append((record.text("a"), record.text("b")))
    assert answers[0] == answers[1]


def test_a_greedy_answer_does_not_change_beside_a_sampled_one(engine: TorchEngine, plain: Plain) -> None:
    join(engine, "hot", temperature=2.0, seed=1, max_tokens=12)
    join(engine, "cold", max_tokens=12)
    assert run(engine).pieces["cold"] == plain.pieces("a queue", 12)


def test_an_end_token_stops_the_answer_is_counted_and_has_no_text(tiny_folder: Path, plain: Plain) -> None:
    ids = plain.greedy("a queue", 12)
    engine = make_engine(tiny_folder)
    engine._eos = (2047, ids[5])  # a model may name several
    first = ids.index(ids[5])
    sequence = join(engine, "r", max_tokens=12)
    record = run(engine)
    assert record.reasons == {"r": "stop"}
    assert sequence.completion_tokens == first + 1
    assert record.text("r") == plain.decode(ids[:first])
    join(engine, "exact", max_tokens=first + 1)
    assert run(engine).reasons == {"exact": "stop"}
    join(engine, "short", max_tokens=first)
    assert run(engine).reasons == {"short": "length"}


def test_ignore_eos_runs_to_max_tokens(tiny_folder: Path, plain: Plain) -> None:
    engine = make_engine(tiny_folder)
    engine._eos = (plain.greedy("a queue", 12)[5],)
    sequence = join(engine, "r", max_tokens=12, ignore_eos=True)
    record = run(engine)
    assert record.reasons == {"r": "length"}
    assert sequence.completion_tokens == 12
    assert record.pieces["r"] == plain.pieces("a queue", 12)


def test_an_answer_cut_within_a_character_shows_that_it_was(
    tiny_folder: Path, plain: Plain, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(tiny_folder)
    half = plain.tokenizer("🙂", add_special_tokens=False)["input_ids"][0]
    step = engine._batch.step
    monkeypatch.setattr(engine._batch, "step", lambda chunk: all_write(half, step(chunk)))
    join(engine, "r", max_tokens=2)
    assert run(engine).pieces["r"] == ["", "\ufffd\ufffd"]


def all_write(token: int, computed: Computed) -> Computed:
    return dataclasses.replace(computed, tokens=[(request, token) for request, _ in computed.tokens])


def test_usage_counts_real_tokens(engine: TorchEngine, plain: Plain) -> None:
    sequence = join(engine, "r", prompt="Überlast — 过载 🙂", max_tokens=5)
    assert sequence.prompt_tokens == len(plain.tokenizer("Überlast — 过载 🙂")["input_ids"])
    record = run(engine)
    assert sequence.completion_tokens == len(record.pieces["r"]) == 5


def test_messages_go_through_the_models_template(engine: TorchEngine, plain: Plain) -> None:
    sequence = engine.prepare(ask(messages=[Message("system", "Be brief."), Message("user", "Why?")]))
    expected = plain.tokenizer.apply_chat_template(
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}], add_generation_prompt=True
    )
    assert list(sequence.prompt_ids) == expected["input_ids"]


def test_a_request_that_can_never_run_is_refused_before_it_waits(engine: TorchEngine) -> None:
    context = engine.context_tokens
    with pytest.raises(BadInput, match="tokens do not fit") as refused:
        engine.prepare(ask(prompt=prompt_of(context)))
    assert (refused.value.param, refused.value.code) == ("prompt", "context_length_exceeded")
    with pytest.raises(BadInput, match="more do not fit") as refused:
        engine.prepare(ask(max_tokens=context))
    assert refused.value.param == "max_tokens"
    with pytest.raises(BadInput, match="chat template") as refused:
        engine.prepare(ask(messages=[Message("poet", "hm")]))
    assert refused.value.param == "messages"


def test_an_absurd_prompt_is_refused_without_tokenizing_it(
    engine: TorchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tokenized(*_: object, **__: object) -> None:
        raise AssertionError("tokenized all the same")

    monkeypatch.setattr(type(engine._prompts._tokenizer), "__call__", tokenized)
    with pytest.raises(BadInput, match="characters do not fit") as refused:
        engine.prepare(ask(prompt="x" * 1_000_000))
    assert refused.value.code == "context_length_exceeded"


def test_an_engine_without_a_slot_or_memory_or_asked_twice_says_so(tiny_folder: Path) -> None:
    engine = make_engine(tiny_folder, slots=2, kv_tokens=128)
    first = join(engine, "first", max_tokens=60)
    with pytest.raises(RuntimeError, match="twice"):
        engine.admit(first)
    large = engine.prepare(ask("large", max_tokens=100))
    with pytest.raises(RuntimeError, match="memory"):
        engine.admit(large)
    join(engine, "second", max_tokens=10)
    with pytest.raises(RuntimeError, match="slot"):
        engine.admit(engine.prepare(ask("third", max_tokens=2)))
    with pytest.raises(TypeError, match="prepared"):
        engine.admit(Sequence(ask("strange"), 3, 3))
    assert engine.running == 2


def test_closing_gives_everything_back(tiny_folder: Path) -> None:
    engine = make_engine(tiny_folder)
    join(engine, "r")
    engine.step()
    engine.close()
    assert engine.running == 0


def test_it_says_what_it_is(engine: TorchEngine) -> None:
    assert (engine.name, engine.slots, engine.context_tokens) == ("torch", 8, 2048)
    assert engine.kv_tokens == 8 * 2048
    assert "0/8 slots" in repr(engine)
    assert "0 running" in repr(engine._batch)
