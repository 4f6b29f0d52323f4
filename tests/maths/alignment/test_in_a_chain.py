"""Losses of alignment behind the transformer in one chain: value and every gradient beside PyTorch's, in float64."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from limpid.config import ModelConfig
from limpid.errors import DomainError, ShapeError
from limpid.maths import Chain, LogSoftmax, alignment
from limpid.maths.transformer import transformer
from limpid.model.transformer import Transformer

CONFIG = ModelConfig(vocab_size=13, context_length=7, d_model=12, num_layers=2, num_heads=3, d_ff=17, qk_norm=True)
ANSWERS, POSITIONS = 6, 7
SHAPE = (ANSWERS, POSITIONS)


def batch() -> dict[str, np.ndarray]:
    """Six answers, chosen and rejected in turn; prompts and padding are masked, two answers are short."""
    rng = np.random.default_rng(5)
    mask = np.ones(SHAPE)
    mask[:, :2] = 0
    mask[1, 5:] = mask[4, 3:] = 0
    tokens = rng.integers(0, 13, (ANSWERS, POSITIONS + 1))
    old, reference = (-rng.gamma(4, 0.6, SHAPE) for _ in range(2))
    return {
        "tokens": tokens[:, :-1],
        "targets": np.where(mask > 0, tokens[:, 1:], -100),
        "mask": mask,
        "old": old,
        "reference": reference,
        "advantages": np.repeat(rng.standard_normal((ANSWERS, 1)), POSITIONS, 1),
        "reference_chosen": -12 + rng.standard_normal(3),
        "reference_rejected": -12 + rng.standard_normal(3),
        "reference_answers": -12 + rng.standard_normal(ANSWERS),
        "desirable": np.array([True, True, False, False, True, False]),
    }


def tokens_of(chain: Chain) -> str:
    """From the batch to the log-probability of each token."""
    chain.apply("log_probabilities", LogSoftmax(), transformer(chain, CONFIG))
    return chain.apply("tokens_log_p", alignment.token_log_probabilities.operation(), "log_probabilities", "targets")


def dpo(chain: Chain) -> str:
    chain.apply("answers", alignment.answer_log_probability.operation(), tokens_of(chain), "mask")
    chain.apply("chosen", alignment.every.operation(start=0), "answers")
    chain.apply("rejected", alignment.every.operation(start=1), "answers")
    loss = alignment.dpo.operation(beta=0.3, label_smoothing=0.1)
    chain.apply("losses", loss, "chosen", "rejected", "reference_chosen", "reference_rejected")
    return chain.apply("loss", alignment.mean.operation(), "losses")


def ipo(chain: Chain) -> str:
    chain.apply("answers", alignment.answer_log_probability.operation(mean=True), tokens_of(chain), "mask")
    chain.apply("chosen", alignment.every.operation(start=0), "answers")
    chain.apply("rejected", alignment.every.operation(start=1), "answers")
    names = ("chosen", "rejected", "reference_chosen", "reference_rejected")
    return chain.apply("loss", alignment.mean.operation(), chain.apply("losses", alignment.ipo.operation(), *names))


def kto(chain: Chain) -> str:
    chain.apply("answers", alignment.answer_log_probability.operation(), tokens_of(chain), "mask")
    loss = alignment.kto.operation(beta=0.2, baseline=0.1, undesirable_weight=1.5)
    chain.apply("losses", loss, "answers", "reference_answers", "desirable")
    return chain.apply("loss", alignment.mean.operation(), "losses")


def ppo(chain: Chain) -> str:
    chain.apply("losses", alignment.ppo.operation(epsilon=0.2), tokens_of(chain), "old", "advantages")
    return chain.apply("loss", alignment.aggregate.operation(), "losses", "mask")


def grpo(chain: Chain) -> str:
    tokens = tokens_of(chain)
    chain.apply("log_ratios", alignment.log_ratios.operation(), tokens, "old", "mask")
    chain.apply("ratios", alignment.importance_ratios.operation(), "log_ratios")
    chain.apply("clipped_ratios", alignment.clipped_ratios.operation(), "ratios", "advantages")
    chain.apply("policy_losses", alignment.policy_losses.operation(), "clipped_ratios", "advantages")
    chain.apply("kl", alignment.weighted_kl_estimate.operation(), tokens, "reference", "ratios")
    chain.apply("losses", alignment.penalised_losses.operation(beta=0.1), "policy_losses", "kl")
    return chain.apply("loss", alignment.aggregate.operation(over="sequence"), "losses", "mask")


Given = dict[str, torch.Tensor]


def torch_dpo(log_p: torch.Tensor, x: Given) -> torch.Tensor:
    answers = (log_p * x["mask"]).sum(-1)
    chosen, rejected = answers[0::2], answers[1::2]
    h = 0.3 * (chosen - rejected - x["reference_chosen"] + x["reference_rejected"])
    return (-0.9 * F.logsigmoid(h) - 0.1 * F.logsigmoid(-h)).mean()


def torch_ipo(log_p: torch.Tensor, x: Given) -> torch.Tensor:
    answers = (log_p * x["mask"]).sum(-1) / x["mask"].sum(-1)
    chosen, rejected = answers[0::2], answers[1::2]
    return (chosen - rejected - x["reference_chosen"] + x["reference_rejected"] - 5).square().mean()


def torch_kto(log_p: torch.Tensor, x: Given) -> torch.Tensor:
    reward = (log_p * x["mask"]).sum(-1) - x["reference_answers"]
    good, bad = 1 - (0.2 * (reward - 0.1)).sigmoid(), 1.5 * (1 - (0.2 * (0.1 - reward)).sigmoid())
    return torch.where(x["desirable"], good, bad).mean()


def clipped(log_p: torch.Tensor, x: Given) -> torch.Tensor:
    ratio = (log_p - x["old"]).exp()
    return -torch.minimum(ratio * x["advantages"], ratio.clamp(0.8, 1.2) * x["advantages"])


def torch_ppo(log_p: torch.Tensor, x: Given) -> torch.Tensor:
    return (clipped(log_p, x) * x["mask"]).sum() / x["mask"].sum()


def torch_grpo(log_p: torch.Tensor, x: Given) -> torch.Tensor:
    gap = x["reference"] - log_p
    losses = clipped(log_p, x) + 0.1 * (log_p - x["old"]).exp() * (gap.exp() - gap - 1)
    return ((losses * x["mask"]).sum(-1) / x["mask"].sum(-1)).mean()


TWINS: dict[Callable[[Chain], str], Callable[[torch.Tensor, Given], torch.Tensor]] = {
    dpo: torch_dpo, ipo: torch_ipo, kto: torch_kto, ppo: torch_ppo, grpo: torch_grpo,
}  # fmt: skip


@pytest.fixture(scope="module")
def model() -> Transformer:
    torch.manual_seed(3)
    model = Transformer(CONFIG, torch.float64).double()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return model


@pytest.mark.parametrize("objective", TWINS, ids=lambda objective: objective.__name__)
def test_value_and_every_gradient_are_pytorchs(objective: Callable[[Chain], str], model: Transformer) -> None:
    arrays = batch()
    weights = {name: parameter.detach().numpy().copy() for name, parameter in model.named_parameters()}
    chain = Chain({**weights, **arrays})
    loss = objective(chain)
    ours = chain.backward(loss)

    model.zero_grad()
    given = {name: torch.tensor(array) for name, array in arrays.items()}
    logits = model(given["tokens"], path="plain")
    log_p = logits.log_softmax(-1).gather(-1, given["targets"].clamp(min=0)[..., None])[..., 0]
    log_p = torch.where(given["targets"] >= 0, log_p, 0.0)
    theirs = TWINS[objective](log_p, given)
    theirs.backward()

    assert float(chain.values[loss]) == pytest.approx(theirs.item(), rel=1e-12)
    for name, parameter in model.named_parameters():
        expected = parameter.grad.numpy()
        size = np.abs(expected).max()
        assert size > 0
        np.testing.assert_allclose(ours[name], expected, rtol=0, atol=1e-12 * size, err_msg=name)


def test_tokens_without_target_and_outside_the_mask_learn_nothing(model: Transformer) -> None:
    chain = Chain({name: parameter.detach().numpy() for name, parameter in model.named_parameters()} | batch())
    gradients = chain.backward(ppo(chain))
    hidden = chain.values["mask"] == 0
    assert (gradients["log_probabilities"][hidden] == 0).all()
    assert (chain.values["tokens_log_p"][hidden] == 0).all()


def test_where_a_chain_cannot_go_the_error_says_so() -> None:
    with pytest.raises(DomainError, match="could not go back"):
        alignment.group_advantages.operation()
    with pytest.raises(ShapeError, match="divide into such parts"):
        alignment.every(np.zeros((5, 2)))
    with pytest.raises(DomainError, match="choose one of token, sequence, fixed_length"):
        alignment.aggregate(np.ones((2, 3)), np.zeros((2, 3)), "tokens")
    with pytest.raises(DomainError, match="no token"):
        alignment.answer_log_probability(np.ones((2, 3)), np.zeros((2, 3)), mean=True)
    with pytest.raises(ShapeError, match="vocabulary of 3"):
        alignment.token_log_probabilities(np.ones((2, 3)), np.array([0, 3]))
