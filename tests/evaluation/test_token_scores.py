"""Surprises beside the model one position at a time, transformers' guide, and the bytes of the text."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.evaluation.small_models import TEXT, small_model
from tokenizers import Tokenizer as Plain
from tokenizers import decoders, models, normalizers, pre_tokenizers

from limpid.data.new_tokenizer import byte_tokenizer, character_tokenizer, train_bpe
from limpid.data.tokenizer import Tokenizer
from limpid.errors import CheckpointError, ConfigError
from limpid.evaluation import token_scores
from limpid.evaluation.scored_text import encode_documents, score_text
from limpid.evaluation.token_scores import score_windows
from limpid.evaluation.windows import Window, Windows
from limpid.model.export import save_folder
from limpid.reporter import SILENT


def by_hand(one, tokens: list[int], place: int, context: int) -> float:
    """-ln p of one token given the context that a window of it would show."""
    with torch.inference_mode():
        logits = one.transformer(torch.tensor([tokens[max(0, place - context) : place]]))[0, -1]
    return float(-logits.double().log_softmax(-1)[tokens[place]])


@given(length=st.integers(1, 70), context=st.integers(1, 20), stride=st.integers(1, 20), start=st.booleans())
@settings(max_examples=200, deadline=None)
def test_every_token_is_scored_once_with_enough_before_it(length: int, context: int, stride: int, start: bool) -> None:
    stride = min(stride, context)
    document = np.arange(length) + 1
    rows = list(Windows(context, stride, "sliding", 0 if start else None).of(document))
    scored = [int(token) for row in rows for token in row.tokens[len(row.tokens) - row.scored :]]
    assert scored == list(range(1 if start else 2, length + 1))
    for row in rows:
        assert row.length <= context
        assert list(row.tokens[-row.scored :]) == list(document[row.place : row.place + row.scored])
        before = min(context - stride, int(row.tokens[-row.scored]) - (0 if start else 1))
        assert row.unscored + 1 >= before


def test_losses_equal_those_of_one_window_per_token() -> None:
    one = small_model()
    document = np.array(byte_tokenizer().encode(TEXT[:60]))
    windows = Windows(12, 1, "sliding", one.start)
    found = np.concatenate([j.loss for j in score_windows(one.transformer, windows.of(document))])
    tokens = [one.start, *document.tolist()]
    expected = [by_hand(one, tokens, place, 12) for place in range(1, len(tokens))]
    np.testing.assert_allclose(found, expected, rtol=2e-5)


def test_entropy_confidence_and_brier_score_are_those_of_the_distribution() -> None:
    one = small_model()
    row = Window(np.array([one.start, *byte_tokenizer().encode("the cat")]), 7)
    (found,) = score_windows(one.transformer, [row])
    with torch.inference_mode():
        p = one.transformer(torch.from_numpy(row.tokens[None, :-1]))[0].double().softmax(-1).numpy()
    came = np.eye(p.shape[1])[row.tokens[1:]]
    np.testing.assert_allclose(found.entropy, -(p * np.log(p)).sum(-1), rtol=1e-5)
    np.testing.assert_allclose(found.confidence, p.max(-1), rtol=1e-5)
    np.testing.assert_allclose(found.brier, ((p - came) ** 2).sum(-1), rtol=1e-5)
    np.testing.assert_array_equal(found.hit, p.argmax(-1) == row.tokens[1:])


@pytest.mark.parametrize("variant", [{}, {"attention_window": 5, "num_kv_heads": 1}, {"positions": "learned"}])
def test_batches_and_parts_of_windows_change_nothing(variant: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    one = small_model(**variant)
    documents = [np.array(byte_tokenizer().encode(TEXT[:n])) for n in (40, 3, 75, 17)]
    rows = [row for document in documents for row in Windows(16, 5, "sliding", one.start).of(document)]
    whole = [scores for row in rows for scores in score_windows(one.transformer, [row])]
    monkeypatch.setattr(token_scores, "LOGITS", 3 * 257)
    monkeypatch.setattr(token_scores, "POSITIONS", 40)
    for together, alone in zip(score_windows(one.transformer, rows), whole, strict=True):
        np.testing.assert_allclose(together.loss, alone.loss, rtol=2e-5, atol=1e-6)
        assert len(together.hit) == len(alone.hit)


@pytest.mark.parametrize("stride", [4, 11, 16])
def test_transformers_guide_to_perplexity_is_reproduced(stride: int, tmp_path) -> None:
    """Its windows and each window's mean, from which it forms its perplexity."""
    from transformers import AutoModelForCausalLM

    one = small_model()
    save_folder(
        tmp_path / "m", one.transformer.config, one.transformer.state_dict(), tokenizer_json=None, end_of_text=256
    )
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "m").eval()
    ids = torch.tensor([byte_tokenizer().encode(TEXT[:83])])
    rows = list(Windows(16, stride, "transformers", one.start).of(ids[0].numpy()))
    ours = [float(scores.loss.mean()) for scores in score_windows(one.transformer, rows)]
    expected, before = [], 0
    for begin in range(0, ids.shape[1], stride):
        end = min(begin + 16, ids.shape[1])
        labels = ids[:, begin:end].clone()
        labels[:, : -(end - before)] = -100
        with torch.no_grad():
            loss = theirs(ids[:, begin:end], labels=labels).loss
        if not math.isnan(loss):
            expected.append(float(loss))
        before = end
        if end == ids.shape[1]:
            break
    np.testing.assert_allclose(ours, expected, rtol=1e-5)


def normalising() -> Tokenizer:
    """Byte-level, but lower case: tokens do not spell the text."""
    plain = Plain.from_str(byte_tokenizer().to_json())
    plain.normalizer = normalizers.Lowercase()
    return Tokenizer(plain)


def sentence_pieces() -> Tokenizer:
    """Words with a mark for the space before them, other characters by bytes."""
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁the", "▁cat", "▁", "t", "h", "e", "c", "a"]
    vocabulary = {piece: id for id, piece in enumerate(pieces)}
    plain = Plain(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>", byte_fallback=True))
    plain.pre_tokenizer = pre_tokenizers.Metaspace()
    plain.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(), decoders.Fuse()])
    return Tokenizer(plain)


@pytest.mark.parametrize(
    "tokenizer",
    [byte_tokenizer(), train_bpe([TEXT], 400), character_tokenizer(set(TEXT)), normalising(), sentence_pieces()],
    ids=["bytes", "bpe", "characters", "normalising", "sentence pieces"],
)
def test_bytes_of_tokens_add_up_to_the_text(tokenizer: Tokenizer) -> None:
    for text in (TEXT, "t", "", "ïïï", "🙂🙂 the cat"):
        ids, sizes = tokenizer.encode_with_sizes(text)
        assert ids == tokenizer.encode(text)
        assert len(ids) == len(sizes)
        assert sum(sizes) == len(text.encode())
        assert min(sizes, default=0) >= 0


def test_parts_of_a_character_have_bytes_of_their_own() -> None:
    assert byte_tokenizer().encode_with_sizes("aé🙂")[1] == [1] * 7
    assert sentence_pieces().encode_with_sizes("é")[1][-2:] == [1, 1]


def test_places_in_the_text_are_those_of_the_documents() -> None:
    one = small_model()
    documents = encode_documents(one, ["ab", "cde", "f"], SILENT)
    found = score_text(one, documents, Windows(2, 1, "sliding", one.start), SILENT)
    assert found.ends.tolist() == [1, 2, 3, 4, 5, 6]
    assert found.documents.tolist() == [2, 5, 6]
    assert found.bytes == 6
    guided = score_text(one, documents, Windows(2, 2, "transformers", one.start), SILENT)
    assert guided.ends.tolist() == [2, 4]  # a window's first token has nothing before it


def test_what_cannot_be_is_said() -> None:
    one = small_model()
    with pytest.raises(ConfigError, match=r"stride is 9: it must lie in 1 … 8"):
        Windows(8, 9, "sliding", None)
    with pytest.raises(CheckpointError, match="do not belong together"):
        list(score_windows(one.transformer, [Window(np.array([1, 999]), 1)]))
    torch.nn.init.constant_(one.transformer.blocks[0].mlp.up.weight, math.nan)
    with pytest.raises(CheckpointError, match="not numbers"):
        list(score_windows(one.transformer, [Window(np.array([1, 2]), 1)]))
