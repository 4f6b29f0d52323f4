"""What is chosen, kept or forgotten: filters against transformers' own, advantages, clipping by value."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from limpid.errors import DomainError, ShapeError
from limpid.maths import alignment, foundations
from limpid.maths.update import clip_by_value


@pytest.mark.parametrize("at_least", [1, 2, 3])
def test_filters_keep_what_transformers_keep(at_least: int) -> None:
    from transformers.generation import logits_process as theirs

    rng = np.random.default_rng(at_least)
    p = rng.dirichlet(np.full(11, 0.4), size=20)
    scores = torch.tensor(np.log(p))
    for ours, their in (
        (foundations.top_p(p, 0.6, at_least=at_least), theirs.TopPLogitsWarper(0.6, min_tokens_to_keep=at_least)),
        (foundations.top_k(p, 1, at_least=at_least), theirs.TopKLogitsWarper(1, min_tokens_to_keep=at_least)),
        (foundations.min_p(p, 0.4, at_least=at_least), theirs.MinPLogitsWarper(0.4, min_tokens_to_keep=at_least)),
        (foundations.typical(p, 0.4, at_least=at_least), theirs.TypicalLogitsWarper(0.4, min_tokens_to_keep=at_least)),
        (
            foundations.epsilon_cutoff(p, 0.2, at_least=at_least),
            theirs.EpsilonLogitsWarper(0.2, min_tokens_to_keep=at_least),
        ),
        (foundations.eta_cutoff(p, 0.2, at_least=at_least), theirs.EtaLogitsWarper(0.2, min_tokens_to_keep=at_least)),
    ):
        assert ours == pytest.approx(their(None, scores.clone()).softmax(-1).numpy(), abs=1e-12), type(their)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_runs_that_would_repeat_are_those_of_transformers(size: int) -> None:
    from transformers.generation.logits_process import NoRepeatNGramLogitsProcessor

    rng = np.random.default_rng(size)
    for length in (0, 1, 5, 40):
        tokens = rng.integers(0, 4, length)
        scores = NoRepeatNGramLogitsProcessor(size)(torch.tensor(tokens)[None], torch.zeros(1, 4))
        if length + 1 >= size:
            assert foundations.repeated_ngram(tokens, size, 4).tolist() == scores.isinf()[0].tolist()


@pytest.mark.usefixtures("unchecked")
def test_what_cannot_be_filtered_says_so() -> None:
    with pytest.raises(DomainError, match="size is 0"):
        foundations.repeated_ngram([1], 0, 3)
    with pytest.raises(ShapeError, match="vocabulary of 3"):
        foundations.repeated_ngram([7], 2, 3)
    for filtered in (foundations.typical, foundations.eta_cutoff):
        with pytest.raises(DomainError, match=r"\(0, 1\)"):
            filtered([0.5, 0.5], 1.0)


def test_leaving_one_out_is_an_unbiased_baseline_and_of_equals_0() -> None:
    rewards = np.array([[1.0, 2.0, 6.0], [0.7, 0.7, 0.7], [0.1, 0.2, 0.3]])
    advantages = alignment.leave_one_out_advantages(rewards)
    assert advantages[0].tolist() == [1 - 4, 2 - 3.5, 6 - 1.5]
    assert not advantages[1].any()
    assert advantages.sum(-1) == pytest.approx(0, abs=1e-15)


def test_a_group_is_weighed_as_pytorch_weighs_classes() -> None:
    logits, targets = np.random.default_rng(0).standard_normal((4, 5)), np.array([0, 3, -100, 3])
    weights = np.array([0.0, 1.0, 2.0, 3.0, 4.0])
    theirs = torch.nn.functional.cross_entropy(torch.tensor(logits), torch.tensor(targets), torch.tensor(weights))
    assert foundations.softmax_cross_entropy(logits, targets, class_weights=weights) == pytest.approx(theirs.item())
    with pytest.raises(DomainError, match="label_smoothing is 2"):
        foundations.softmax_cross_entropy(logits, targets, label_smoothing=2)


def test_clipping_by_value_clips_entries_as_pytorch_does() -> None:
    parameter = torch.nn.Parameter(torch.zeros(3))
    parameter.grad = torch.tensor([-2.0, 0.5, 7.0])
    ours = clip_by_value({"a": parameter.grad.numpy().astype(np.float64)}, 1.0)["a"]
    torch.nn.utils.clip_grad_value_([parameter], 1.0)
    assert ours.tolist() == parameter.grad.tolist()
    with pytest.raises(DomainError, match="limit is -1"):
        clip_by_value({}, -1.0)
