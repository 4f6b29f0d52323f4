"""Decoding: with and without a cache, alone and in a batch, beside transformers; and text as it comes."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from limpid.config import ModelConfig, Sampling
from limpid.data.new_tokenizer import byte_tokenizer, train_bpe
from limpid.data.tokenizer import Tokenizer
from limpid.errors import ConfigError, DataError
from limpid.generation import Decoder, complete, stream
from limpid.generation.chat import chat
from limpid.generation.completion import Completion
from limpid.generation.detokenize import Detokenizer
from limpid.generation.sampling import allowed, next_tokens, penalised, row_generator
from limpid.model import Transformer, initialise
from limpid.model.export import save_folder


def list_of(*asked: object) -> list[Completion]:
    return list(complete(*asked))


VARIANTS = {
    "llama": {},
    "shared keys in a window": {"num_kv_heads": 1, "attention_window": 6},
    "windowed blocks, normed": {"attention_window": 4, "windowed_blocks": (1,), "qk_norm": True},
    "learned positions": {"positions": "learned", "norm": "layer"},
    "sinusoidal, post": {"positions": "sinusoidal", "norm_placement": "post"},
}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return byte_tokenizer()


def model(variant: str = "llama", context: int = 64, seed: int = 0) -> Transformer:
    config = ModelConfig(
        vocab_size=257,
        context_length=context,
        d_model=24,
        num_layers=2,
        num_heads=4,
        init_std=0.35,
        **VARIANTS[variant],
    )
    return initialise(Transformer(config), seed).eval()


def without_cache(model: Transformer, tokens: list[int], sampling: Sampling, count: int) -> list[int]:
    """The whole text through the model for every token."""
    generator = row_generator(sampling.seed, 0)
    tokens = list(tokens)
    with torch.inference_mode():
        for _ in range(count):
            logits = model(torch.tensor([tokens]))[:, -1]
            tokens.append(int(next_tokens(logits, [torch.tensor(tokens)], sampling, [generator])))
    return tokens[-count:]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(
    "sampling", [Sampling(24, 0.0), Sampling(24, 0.9), Sampling(24, 0.7, top_p=0.8, repetition_penalty=1.3)]
)
def test_tokens_are_those_of_the_whole_text_without_cache(
    variant: str, sampling: Sampling, tokenizer: Tokenizer
) -> None:
    net = model(variant)
    made = list_of(net, tokenizer, ["hello, "], sampling)[0]
    expected = without_cache(net, tokenizer.encode("hello, "), sampling, 24)
    if 256 in expected:
        expected = expected[: expected.index(256)]
    assert list(made.tokens) == expected


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_row_does_not_depend_on_its_neighbours(variant: str, tokenizer: Tokenizer) -> None:
    net = model(variant)
    prompts = ["a", "a longer prompt", "mid size"]
    together = list_of(net, tokenizer, prompts, Sampling(20, 0.8, seed=5))
    for row, prompt in enumerate(prompts):
        among_others = [*["", "x"][:row], prompt]
        assert together[row] == list_of(net, tokenizer, among_others, Sampling(20, 0.8, seed=5))[row]


def test_neighbouring_seeds_share_no_draws(tokenizer: Tokenizer) -> None:
    """A prompt three times at two seeds: six continuations."""
    net = model("llama")
    found = [made for seed in (5, 6) for made in list_of(net, tokenizer, ["a"] * 3, Sampling(20, 0.8, seed=seed))]
    assert len({made.tokens for made in found}) == len(found)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("spare", [0, 3, 40])
def test_many_prompts_take_turns_in_few_places(
    variant: str, spare: int, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts of all lengths, ending at different times: each continues as it does alone."""
    monkeypatch.setattr("limpid.generation.decode.ROWS", 3)
    monkeypatch.setattr("limpid.generation.decode.SPARE", spare)
    decoder = Decoder(model(variant))
    prompts = [("To be or not " * 6)[:length] for length in (3, 20, 1, 33, 2, 7, 60, 64, 5, 14, 1)]
    for sampling in (Sampling(temperature=0, max_new_tokens=9, stop=("e",)), Sampling(max_new_tokens=30, seed=4)):
        found = list_of(decoder, tokenizer, prompts, sampling)
        monkeypatch.setattr("limpid.generation.decode.ROWS", len(prompts))
        assert found == list_of(decoder, tokenizer, prompts, sampling)
        monkeypatch.setattr("limpid.generation.decode.ROWS", 3)
    assert {made.finish for made in found} >= {"length", "context"}


@pytest.mark.parametrize("prompts", [["To be or", "not to be,"] * 20, [c for c in "abcdefghij" for _ in range(4)]])
def test_a_prompt_is_read_once_however_many_answers_it_gets(
    prompts: list[str], tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("limpid.generation.decode.ROWS", 5)
    net, read = model(), []
    forward = net.forward
    monkeypatch.setattr(net, "forward", lambda tokens, *args, **named: read.append(tokens.shape) or forward(
        tokens, *args, **named))  # fmt: skip
    decoder = Decoder(net)
    decoder.position_decoder = None
    found = list_of(decoder, tokenizer, prompts, Sampling(max_new_tokens=1, seed=4))
    assert [made.tokens for made in found] == [
        made.tokens for made in list_of(model(), tokenizer, prompts, Sampling(max_new_tokens=1, seed=4))
    ]
    assert sum(rows for rows, _ in read) <= len(set(prompts)) + 8


def test_a_seed_is_a_continuation(tokenizer: Tokenizer) -> None:
    net = model()
    assert list_of(net, tokenizer, ["x"], Sampling(20)) == list_of(net, tokenizer, ["x"], Sampling(20))
    assert list_of(net, tokenizer, ["x"], Sampling(20)) != list_of(net, tokenizer, ["x"], Sampling(20, seed=1))


@pytest.mark.parametrize("length_penalty", [0.0, 1.0, 2.0])
@pytest.mark.parametrize("beams", [2, 3, 5])
def test_beams_are_transformers_beams(beams: int, length_penalty: float, tokenizer: Tokenizer, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    for seed in range(3):
        net = model(seed=seed)
        save_folder(tmp_path / f"{seed}", net.config, net.state_dict(), tokenizer_json=None, end_of_text=256)
        theirs = AutoModelForCausalLM.from_pretrained(tmp_path / f"{seed}").eval()
        prompt = torch.tensor([tokenizer.encode("hello")])
        generated = theirs.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=15,
            num_beams=beams,
            length_penalty=length_penalty,
            do_sample=False,
            eos_token_id=256,
            pad_token_id=256,
        )[0, prompt.shape[1] :].tolist()
        if 256 in generated:
            generated = generated[: generated.index(256)]
        ours = list_of(net, tokenizer, ["hello"], Sampling(15, num_beams=beams, length_penalty=length_penalty))[0]
        assert list(ours.tokens) == generated


@pytest.mark.parametrize(
    ("sampling", "theirs"),
    [
        (Sampling(temperature=0.7), [TemperatureLogitsWarper(0.7)]),
        (Sampling(temperature=1.0, top_k=5), [TopKLogitsWarper(5)]),
        (Sampling(temperature=1.3, top_p=0.6), [TemperatureLogitsWarper(1.3), TopPLogitsWarper(0.6)]),
        (Sampling(temperature=1.0, min_p=0.1), [MinPLogitsWarper(0.1)]),
        (
            Sampling(temperature=0.5, top_k=9, top_p=0.9, min_p=0.05),
            [TemperatureLogitsWarper(0.5), TopKLogitsWarper(9), TopPLogitsWarper(0.9), MinPLogitsWarper(0.05)],
        ),
    ],
)
def test_filters_equal_transformers(sampling: Sampling, theirs: list) -> None:
    logits = 3 * torch.randn(50, 41, generator=torch.Generator().manual_seed(0))
    expected = LogitsProcessorList(theirs)(torch.zeros(50, 1, dtype=torch.int64), logits.clone())
    torch.testing.assert_close(allowed(logits, sampling), expected)


def test_the_repetition_penalty_equals_transformers() -> None:
    logits = torch.randn(7, 41, generator=torch.Generator().manual_seed(0))
    seen = torch.randint(0, 41, (7, 11), generator=torch.Generator().manual_seed(1))
    expected = RepetitionPenaltyLogitsProcessor(1.7)(seen, logits.clone())
    torch.testing.assert_close(penalised(logits, list(seen), 1.7), expected)


@given(st.lists(st.floats(-8, 8), min_size=2, max_size=30), st.floats(0.01, 0.99))
@settings(deadline=None, max_examples=200)
def test_the_nucleus_is_the_smallest_set_that_reaches_p(logits: list[float], top_p: float) -> None:
    row = torch.tensor([logits], dtype=torch.float64)
    kept = allowed(row, Sampling(temperature=1.0, top_p=top_p))[0].isfinite().numpy()
    probabilities = row.softmax(-1)[0].numpy()
    assert probabilities[kept].sum() >= top_p - 1e-9
    without_least = probabilities[kept].sum() - probabilities[kept].min()
    assert without_least < top_p + 1e-9
    assert kept.any()
    assert probabilities[kept].min() >= np.max(probabilities[~kept], initial=0.0)


def test_draws_follow_the_probabilities() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0, -1.0]])
    generator = torch.Generator().manual_seed(0)
    draws = [int(next_tokens(logits, [], Sampling(temperature=1.0), [generator])) for _ in range(4000)]
    found = np.bincount(draws, minlength=4) / 4000
    expected = logits.softmax(-1)[0].numpy()
    assert np.abs(found - expected).max() < 4 * np.sqrt(0.25 / 4000)


def test_pieces_add_up_to_the_whole_text_and_never_split_a_character(tokenizer: Tokenizer) -> None:
    text = "naïve 日本 🙂 end"
    grown = Detokenizer(tokenizer, ())
    pieces = [grown.add(token) for token in tokenizer.encode(text)]
    assert "".join(pieces) + grown.finish() == text
    assert not any("\ufffd" in piece for piece in pieces)


def test_the_stream_is_the_completion(tokenizer: Tokenizer) -> None:
    net = model()
    sampling = Sampling(40, 0.9, stop=("zz", "e"))
    made = list_of(net, tokenizer, ["one", "two"], sampling)
    texts = ["", ""]
    finish = {}
    for piece in stream(net, tokenizer, ["one", "two"], sampling):
        texts[piece.row] += piece.text
        if piece.finish:
            finish[piece.row] = piece.finish
    assert texts == [completion.text for completion in made]
    assert [finish[0], finish[1]] == [completion.finish for completion in made]


@pytest.mark.parametrize("stop", [("END",), ("xEN", "END"), ("N",), ("D and", "END an")])
def test_a_stop_string_across_tokens_is_cut_off(stop: tuple[str, ...]) -> None:
    tokenizer = train_bpe(["text END and more"] * 9, 262)
    grown = Detokenizer(tokenizer, stop)
    given_out = ""
    for token in tokenizer.encode("text END and more"):
        given_out += grown.add(token)
        if grown.stopped:
            break
    expected = min(("text END and more".split(part)[0] for part in stop if part in "text END and more"), key=len)
    assert given_out == expected
    assert grown.text == expected


def test_held_back_text_comes_out_when_it_was_no_stop_string(tokenizer: Tokenizer) -> None:
    grown = Detokenizer(tokenizer, ("ENDING",))
    pieces = [grown.add(token) for token in tokenizer.encode("the END")]
    assert "".join(pieces) == "the "
    assert grown.finish() == "END"


@pytest.mark.parametrize("variant", ["llama", "learned positions"])
def test_generation_ends_where_the_context_ends(variant: str, tokenizer: Tokenizer) -> None:
    net = model(variant, context=16)
    long, short = list_of(net, tokenizer, ["0123456789", "01"], Sampling(100, 0.0))
    for made, prompt in ((long, 10), (short, 2)):
        if made.finish == "context":
            assert len(made.tokens) == 16 - prompt + 1
    assert {long.finish, short.finish} <= {"context", "end of text"}
    assert "context" in {long.finish, short.finish}


def test_a_prompt_longer_than_the_context_names_both_lengths(tokenizer: Tokenizer) -> None:
    with pytest.raises(DataError, match=r"the prompt 'x+' has 17 tokens, the model's context holds 16"):
        list_of(model(context=16), tokenizer, ["x" * 17], Sampling())


def test_an_empty_prompt_starts_a_document(tokenizer: Tokenizer) -> None:
    assert list_of(model(), tokenizer, [""], Sampling(5))[0].finish in ("length", "end of text")


@pytest.mark.parametrize(
    "options",
    [{"temperature": -1}, {"top_p": 0}, {"top_p": 1.5}, {"top_k": -1}, {"min_p": 2}, {"max_new_tokens": 0},
     {"repetition_penalty": 0}, {"num_beams": 0}, {"stop": ("",)}],
)  # fmt: skip
def test_a_wrong_option_is_named(options: dict) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        Sampling(**options)


def test_a_conversation_keeps_its_turns_and_forgets_the_oldest(tokenizer: Tokenizer) -> None:
    lines = iter(["hello there", "/reset", "again", "and again", "and once more, at length", "/exit"])
    said: list[str] = []
    chat(model(context=64), tokenizer, Sampling(8, 0.5), lambda: next(lines), said.append)
    whole = "".join(said)
    assert "(a new conversation)" in whole
    assert "forgotten" in whole


def test_a_conversation_ends_with_the_input(tokenizer: Tokenizer) -> None:
    def nothing() -> str:
        raise EOFError

    said: list[str] = []
    chat(model(), tokenizer, Sampling(4), nothing, said.append)
    assert said[-1] == "\n"


def test_the_tokens_of_a_completion_are_its_text(tokenizer: Tokenizer) -> None:
    made = list_of(model(), tokenizer, ["abc"], Sampling(30, 1.0))[0]
    assert tokenizer.decode(made.tokens) == made.text
    json.dumps({"text": made.text})
