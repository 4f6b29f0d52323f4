"""A watermark: transformers' draw and detector, its own false alarms, and what it does to a text."""

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import binom
from transformers import AutoModelForCausalLM, WatermarkDetector, WatermarkingConfig, WatermarkLogitsProcessor

from limpid.config import ModelConfig, Sampling
from limpid.data.new_tokenizer import byte_tokenizer
from limpid.data.tokenizer import Tokenizer
from limpid.errors import ConfigError
from limpid.evaluation.evaluation import evaluate
from limpid.generation import complete
from limpid.generation.sampling import next_tokens, row_generator
from limpid.generation.watermark import detect, detect_all, green_tokens, greened
from limpid.maths.foundations import green_probability, green_z, raise_green, softmax
from limpid.model import Transformer, initialise
from limpid.model.export import save_folder

VOCAB, KEY = 257, 7_654_321


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return byte_tokenizer()


@pytest.fixture(scope="module")
def model() -> Transformer:
    config = ModelConfig(vocab_size=VOCAB, context_length=256, d_model=24, num_layers=2, num_heads=4, init_std=0.35)
    return initialise(Transformer(config), 0).eval()


@pytest.fixture(scope="module")
def theirs(model: Transformer, tmp_path_factory: pytest.TempPathFactory) -> object:
    folder = tmp_path_factory.mktemp("theirs")
    save_folder(folder, model.config, model.state_dict(), tokenizer_json=None, end_of_text=256)
    return AutoModelForCausalLM.from_pretrained(folder).eval()


def their_config(gamma: float, delta: float = 2.0) -> WatermarkingConfig:
    return WatermarkingConfig(greenlist_ratio=gamma, bias=delta, hashing_key=KEY, seeding_scheme="lefthash")


@pytest.mark.parametrize("gamma", [0.1, 0.25, 0.5])
def test_green_lists_and_raised_logits_are_those_of_transformers(gamma: float) -> None:
    logits = torch.randn(5, VOCAB, generator=torch.Generator().manual_seed(0))
    logits[0, 3] = -torch.inf
    seen = torch.randint(0, VOCAB, (5, 7), generator=torch.Generator().manual_seed(1))
    processor = WatermarkLogitsProcessor(VOCAB, "cpu", gamma, 1.5, KEY)
    found = greened(logits, list(seen), Sampling(watermark=KEY, watermark_gamma=gamma, watermark_delta=1.5))
    assert torch.equal(found, processor(seen, logits.clone()))
    for row, tokens in enumerate(seen):
        green = np.isin(np.arange(VOCAB), green_tokens(KEY, int(tokens[-1]), gamma, VOCAB))
        assert raise_green(logits[row].double().numpy(), green, 1.5) == pytest.approx(found[row].numpy(), abs=1e-6)


@pytest.mark.parametrize("beams", [1, 3])
def test_what_is_written_is_what_transformers_writes(
    beams: int, model: Transformer, tokenizer: Tokenizer, theirs: torch.nn.Module
) -> None:
    prompt = torch.tensor([tokenizer.encode("hello")])
    generated = theirs.generate(
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=30, num_beams=beams, do_sample=False,
        eos_token_id=256, pad_token_id=256, watermarking_config=their_config(0.25),
    )[0, prompt.shape[1] :].tolist()  # fmt: skip
    asked = Sampling(30, 0.0 if beams == 1 else None, watermark=KEY, num_beams=beams)
    (made,) = complete(model, tokenizer, ["hello"], asked)
    assert [*made.tokens, 256][: len(generated)] == generated
    (plain,) = complete(model, tokenizer, ["hello"], Sampling(30, 0.0 if beams == 1 else None, num_beams=beams))
    assert plain.tokens != made.tokens


@pytest.mark.parametrize("gamma", [0.25, 0.5])
def test_counts_are_those_of_transformers_detector(
    gamma: float, model: Transformer, tokenizer: Tokenizer, theirs: torch.nn.Module
) -> None:
    detector = WatermarkDetector(theirs.config, "cpu", their_config(gamma), ignore_repeated_ngrams=True)
    sampling = Sampling(200, 1.0, watermark=KEY, watermark_gamma=gamma, watermark_delta=4.0)
    marked = [made.tokens for made in complete(model, tokenizer, ["a", "b c"], sampling)]
    plain = [made.tokens for made in complete(model, tokenizer, ["a", "b c"], Sampling(200, 1.0))]
    for tokens in (*marked, *plain):
        ours = detect(tokens, VOCAB, KEY, gamma)
        other = detector(torch.tensor([tokens]), return_dict=True)
        assert (ours.counted, ours.green) == (other.num_tokens_scored[0], other.num_green_tokens[0])
        assert green_z(ours.green, ours.counted, gamma) == pytest.approx(other.z_score[0])
    assert min(detect(tokens, VOCAB, KEY, gamma).z for tokens in marked) > 6
    assert max(detect(tokens, VOCAB, KEY, gamma).z for tokens in plain) < 4


def test_the_probability_of_chance_is_the_binomial_tail() -> None:
    tokens = np.random.default_rng(0).integers(0, VOCAB, 300)
    found = detect(tokens.tolist(), VOCAB, KEY, 0.5)
    assert found.gamma == 128 / 257
    assert found.p == pytest.approx(binom.sf(found.green - 1, found.counted, 128 / 257), rel=1e-10)


def test_without_the_key_false_alarms_come_as_often_as_promised() -> None:
    """Random texts of a small alphabet, which repeat pairs; each pair counted once, the binomial tail holds."""
    rng = np.random.default_rng(1)
    values = np.array([detect(rng.zipf(1.6, 400).clip(max=256).tolist(), VOCAB, key, 0.5).p for key in range(1, 2001)])
    for level in (0.1, 0.01):
        assert (values <= level).mean() < level + 3 * np.sqrt(level / len(values))
    assert 0.45 < values.mean() < 0.6


def test_a_repeated_pair_counts_once_and_none_reaches_into_the_next_text() -> None:
    once = detect([5, 9, 7], VOCAB, KEY)
    assert once.counted == 2
    many = detect([5, 9, 7] * 50, VOCAB, KEY)
    assert many.counted == 3
    assert detect_all([[5, 9], [7, 9]], VOCAB, KEY, 0.25).counted == 2


def test_green_tokens_come_as_often_as_their_raised_probability() -> None:
    logits = torch.randn(1, 41, generator=torch.Generator().manual_seed(3))
    sampling = Sampling(temperature=1.0, watermark=KEY, watermark_delta=1.2)
    green = green_tokens(KEY, 8, 0.25, 41).tolist()
    expected = green_probability(float(softmax(logits.double().numpy())[0, green].sum()), 1.2)
    generator = row_generator(0, 0)
    draws = [int(next_tokens(logits, [torch.tensor([8])], sampling, [generator])) for _ in range(4000)]
    assert np.isin(draws, green).mean() == pytest.approx(expected, abs=4 * np.sqrt(0.25 / 4000))


def test_a_filtered_token_does_not_come_back() -> None:
    logits = torch.zeros(1, 41)
    logits[0, 7] = 9.0
    sampling = Sampling(temperature=1.0, top_k=1, watermark=KEY, watermark_delta=50.0)
    for previous in range(20):
        assert int(next_tokens(logits, [torch.tensor([previous])], sampling, [row_generator(0, 0)])) == 7


def test_an_evaluation_finds_it_in_the_text(
    model: Transformer, tokenizer: Tokenizer, capsys: pytest.CaptureFixture[str]
) -> None:
    sampling = Sampling(250, 1.0, watermark=KEY, watermark_delta=4.0)
    (made,) = complete(model, tokenizer, ["a"], sampling)
    text = "".join(map(chr, itertools.islice((token for token in made.tokens if 32 <= token < 127), 200)))
    found = evaluate((model, tokenizer), text=text, watermark=KEY)
    assert found.texts[0].watermark == detect(tokenizer.encode(text), VOCAB, KEY)
    assert found.document()["texts"][0]["watermark"]["counted"] == found.texts[0].watermark.counted
    assert "watermark" in found._repr_html_()
    assert evaluate((model, tokenizer), text=text).texts[0].watermark is None


def test_the_verbs_write_and_find_it(model: Transformer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from limpid.cli import main

    tokenizer = byte_tokenizer()
    save_folder(tmp_path / "m", model.config, model.state_dict(), tokenizer_json=tokenizer.to_json(), end_of_text=256)
    assert main(["generate", str(tmp_path / "m"), "ab", "-n", "80", "--watermark", str(KEY)]) == 0
    text = capsys.readouterr().out
    (tmp_path / "t.txt").write_text(text)
    assert main(["evaluate", str(tmp_path / "m"), str(tmp_path / "t.txt"), "--watermark", str(KEY)]) == 0
    assert f"watermark {KEY}: " in capsys.readouterr().out
    assert main(["generate", str(tmp_path / "m"), "ab", "--watermark-delta", "3"]) == 2
    assert "give --watermark KEY too" in capsys.readouterr().err


def test_mistakes_name_the_value() -> None:
    with pytest.raises(ConfigError, match="of 3 tokens 0 would be green"):
        green_tokens(KEY, 1, 0.25, 3)
    with pytest.raises(ConfigError, match="no two tokens beside each other"):
        detect([5], VOCAB, KEY)
    with pytest.raises(ConfigError, match="watermark is 0"):
        Sampling(watermark=0)
    with pytest.raises(ConfigError, match=r"watermark_gamma is 0\.5, and there is no watermark"):
        Sampling(watermark_gamma=0.5)
