"""How far a model is from another on answers: the mean over all answers, counted, is KL(π‖π₀) of answers."""

import itertools

import numpy as np
import pytest
import torch

from limpid.config import ModelConfig
from limpid.evaluation.records.divergence import divergences
from limpid.model import Transformer, initialise

CONFIG = ModelConfig(vocab_size=4, context_length=4, d_model=12, num_layers=1, num_heads=3, d_ff=16, init_std=0.8)
PROMPT = (2, 1)
ANSWERS = list(itertools.product(range(4), repeat=3))


def answer_log_probabilities(model: Transformer, temperature: float) -> np.ndarray:
    rows = torch.tensor([(*PROMPT, *answer) for answer in ANSWERS])
    with torch.no_grad():
        every = (model(rows[:, :-1]).double() / temperature).log_softmax(-1)
    return every.gather(-1, rows[:, 1:, None])[:, len(PROMPT) - 1 :, 0].sum(-1).numpy()


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_its_mean_is_the_divergence_of_answers(temperature: float) -> None:
    policy, reference = (initialise(Transformer(CONFIG), seed).eval() for seed in (0, 1))
    ours, theirs = (answer_log_probabilities(model, temperature) for model in (policy, reference))
    found = divergences(policy, reference, [PROMPT] * len(ANSWERS), ANSWERS, temperature, lambda done: None)
    exact = np.exp(ours) @ (ours - theirs)
    assert exact > 0.1
    assert np.exp(ours) @ found == pytest.approx(exact, rel=1e-5)
    assert found.min() > 0  # of no answer is it noise below 0
