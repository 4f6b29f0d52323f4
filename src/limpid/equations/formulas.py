"""PyTorch's way to the numbers of each differentiable formula, with inputs to try both on."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F

from limpid.equations.formula_example import FormulaExample as FormulaExample
from limpid.equations.preference_formulas import preference_examples
from limpid.maths import alignment, foundations


def grouped(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(query[None], key[None], value[None], is_causal=True, enable_gqa=True)[0]


def heads(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
    """torch.nn's own multi-head attention with the same weights."""
    *inner, output = weights
    width = x.shape[-1]
    hidden = torch.ones(len(x), len(x), dtype=torch.bool).triu(1)
    mixed, _ = F.multi_head_attention_forward(
        x[:, None], x[:, None], x[:, None], width, 3, torch.cat(inner), None, None, None, False, 0.0, output, None,
        attn_mask=hidden, need_weights=False,
    )  # fmt: skip
    return mixed[:, 0]


def linear(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """The paper's equation with its weights written out."""
    weights = ((F.elu(query) + 1) @ (F.elu(key) + 1).T).tril()
    return weights @ value / weights.sum(-1, keepdim=True)


def recurrent(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
    """torch.nn's own LSTM with the same weights, on a batch of one."""
    own = torch.nn.LSTM(x.shape[-1], weights[1].shape[-1], dtype=x.dtype)
    named = dict(zip(("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"), weights, strict=True))
    return torch.func.functional_call(own, named, (x[:, None],))[0][:, 0]


def clipped(new: torch.Tensor, old: torch.Tensor, advantages: torch.Tensor) -> torch.Tensor:
    ratio = (new - old).exp()
    return torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)


def group_relative(weighted: bool) -> Callable[..., torch.Tensor]:
    def twin(new: torch.Tensor, old: torch.Tensor, reference: torch.Tensor, advantages: torch.Tensor) -> torch.Tensor:
        penalty = (reference - new).exp() - (reference - new) - 1
        penalty = (new - old).exp() * penalty if weighted else penalty
        return (clipped(new, old, advantages) - 0.04 * penalty).mean()

    return twin


def formula_examples() -> list[FormulaExample]:
    """At least one for every formula that has a gradient."""
    rng = np.random.default_rng(11)

    def normal(*shape: int, scale: float = 1.0) -> np.ndarray:
        return scale * rng.standard_normal(shape)

    def distribution(*shape: int) -> np.ndarray:
        drawn = rng.random(shape) + 0.01
        return np.asarray(drawn / drawn.sum(-1, keepdims=True))

    p, q = distribution(3, 5), distribution(3, 5)
    four = tuple(normal(7, scale=3) for _ in range(4))
    new, old, reference, advantages = -(normal(13) ** 2), -(normal(13) ** 2), -(normal(13) ** 2), normal(13)
    good = rng.random(7) < 0.5
    targets = np.array([[0, -100, 4], [2, 2, 1]])
    mask = np.array([[0, 1, 1, 1, 0], [1, 1, 1, 1, 1], [0, 0, 1, 0, 0]])
    return [
        FormulaExample("dot", foundations.dot, (normal(7), normal(7)), torch.dot),
        FormulaExample("norm", foundations.norm, (normal(3, 5),), torch.linalg.norm),
        FormulaExample(
            "cosine", foundations.cosine_similarity, (normal(7), normal(7)), lambda x, y: F.cosine_similarity(x, y, 0)
        ),
        FormulaExample("matmul", foundations.matmul, (normal(3, 5), normal(5, 7)), torch.matmul),
        FormulaExample("matmul with a vector", foundations.matmul, (normal(3, 5), normal(5)), torch.matmul),
        FormulaExample(
            "spectral norm", foundations.spectral_norm, (normal(5, 3),), lambda w: torch.linalg.matrix_norm(w, 2)
        ),
        FormulaExample("frobenius norm", foundations.frobenius_norm, (normal(5, 3),), torch.linalg.matrix_norm),
        FormulaExample("log-sum-exp", foundations.log_sum_exp, (normal(3, 5, scale=9),), lambda z: z.logsumexp(-1)),
        FormulaExample("softmax", foundations.softmax, (normal(3, 5, scale=3),), lambda z: z.softmax(-1)),
        FormulaExample(
            "softmax, warm", foundations.softmax, (normal(3, 5),), lambda z: (z / 0.3).softmax(-1), {"temperature": 0.3}
        ),
        FormulaExample(
            "softmax of all",
            foundations.softmax,
            (normal(3, 5),),
            lambda z: z.ravel().softmax(-1).view(3, 5),
            {"axis": None},
        ),
        FormulaExample("log-softmax", foundations.log_softmax, (normal(3, 5, scale=90),), lambda z: z.log_softmax(-1)),
        FormulaExample("joint", foundations.joint_log_probability, (rng.random(7),), lambda x: x.log().sum()),
        FormulaExample(
            "likelihood",
            foundations.gaussian_log_likelihood,
            (np.array(0.3), tuple(normal(11))),
            lambda mean, x: torch.distributions.Normal(mean, 2.0).log_prob(x).sum(),
            {"std": 2.0},
        ),
        FormulaExample("surprise", foundations.surprise, (rng.random(7),), lambda x: -x.log2(), {"base": 2}),
        FormulaExample(
            "entropy", foundations.entropy, (p,), lambda x: torch.special.entr(x).sum(-1), distributions=True
        ),
        FormulaExample(
            "cross-entropy", foundations.cross_entropy, (p, q), lambda x, y: -(x * y.log()).sum(-1), distributions=True
        ),
        FormulaExample(
            "kl",
            foundations.kl_divergence,
            (p, q),
            lambda x, y: F.kl_div(y.log(), x, reduction="none").sum(-1),
            distributions=True,
        ),
        FormulaExample(
            "softmax cross-entropy",
            foundations.softmax_cross_entropy,
            (normal(2, 3, 5), targets),
            lambda z, t: F.cross_entropy(z.flatten(0, 1), t.flatten()),
        ),
        FormulaExample(
            "softmax cross-entropy, weighted and smoothed",
            foundations.softmax_cross_entropy,
            (normal(2, 3, 5), targets),
            lambda z, t: F.cross_entropy(
                z.flatten(0, 1), t.flatten(), torch.arange(1.0, 6.0, dtype=z.dtype), label_smoothing=0.1
            ),
            {"label_smoothing": 0.1, "class_weights": np.arange(1.0, 6.0)},
        ),
        FormulaExample(
            "huber",
            foundations.huber,
            (normal(9, scale=3), normal(9)),
            lambda x, y: F.huber_loss(x, y, reduction="none", delta=0.7),
            {"delta": 0.7},
        ),
        FormulaExample(
            "binary cross-entropy",
            foundations.binary_cross_entropy,
            (normal(7, scale=5), good.astype(int)),
            lambda z, y: torch.where(y > 0, F.softplus(-z), F.softplus(z)),  # its own loss of logits cancels near 0
        ),
        FormulaExample(
            "lstm", foundations.lstm, (normal(7, 3), normal(20, 3), normal(20, 5), normal(20), normal(20)), recurrent
        ),
        FormulaExample(
            "attention",
            foundations.attention,
            (normal(5, 7), normal(11, 7), normal(11, 3)),
            F.scaled_dot_product_attention,
        ),
        FormulaExample(
            "attention, grouped and causal",
            foundations.attention,
            (normal(6, 5, 7), normal(2, 5, 7), normal(2, 5, 3)),
            grouped,
            {"causal": True},
        ),
        FormulaExample(
            "multi-head attention",
            foundations.multi_head_attention,
            (normal(5, 6), *(normal(6, 6) for _ in range(4))),
            heads,
            {"num_heads": 3},
        ),
        FormulaExample(
            "linear attention",
            foundations.linear_attention,
            (normal(7, 5), normal(7, 5), normal(7, 3)),
            linear,
            {"causal": True},
        ),
        FormulaExample("tempered", alignment.tempered, (normal(2, 3, 5),), lambda z: z / 0.7, {"temperature": 0.7}),
        FormulaExample(
            "token log-probabilities",
            alignment.token_log_probabilities,
            (normal(2, 3, 5), targets),
            lambda y, t: torch.where(t >= 0, y.gather(-1, t.clamp(min=0)[..., None])[..., 0], 0.0),
        ),
        FormulaExample("answer", alignment.answer_log_probability, (normal(3, 5), mask), lambda y, m: (y * m).sum(-1)),
        FormulaExample(
            "answer, per token",
            alignment.answer_log_probability,
            (normal(3, 5), mask),
            lambda y, m: (y * m).sum(-1) / m.sum(-1),
            {"mean": True},
        ),
        FormulaExample("aggregate", alignment.aggregate, (normal(3, 5), mask), lambda x, m: (x * m).sum() / m.sum()),
        FormulaExample(
            "aggregate, per answer",
            alignment.aggregate,
            (normal(3, 5), mask),
            lambda x, m: ((x * m).sum(-1) / m.sum(-1)).mean(),
            {"over": "sequence"},
        ),
        FormulaExample(
            "aggregate, fixed length",
            alignment.aggregate,
            (normal(3, 5), mask),
            lambda x, m: (x * m).sum() / 21,
            {"over": "fixed_length", "max_completion_length": 7},
        ),
        FormulaExample("mean", alignment.mean, (normal(7),), torch.mean),
        FormulaExample("every", alignment.every, (normal(6, 5),), lambda x: x[1::3], {"start": 1, "step": 3}),
        *preference_examples(four, good),
        FormulaExample(
            "k1", alignment.kl_estimate, (new, reference), lambda n, r: torch.log(n.exp() / r.exp()), {"kind": "k1"}
        ),
        FormulaExample(
            "k2", alignment.kl_estimate, (new, reference), lambda n, r: (n - r).square() / 2, {"kind": "k2"}
        ),
        FormulaExample("k3", alignment.kl_estimate, (new, reference), lambda n, r: torch.expm1(r - n) - (r - n)),
        FormulaExample("ppo", alignment.ppo, (new, old, advantages), lambda n, o, a: -clipped(n, o, a)),
        FormulaExample(
            "log-ratios", alignment.log_ratios, (normal(3, 5), normal(3, 5), mask), lambda n, o, m: m * (n - o)
        ),
        FormulaExample(
            "log-ratios of answers",
            alignment.log_ratios,
            (normal(3, 5), normal(3, 5), mask),
            lambda n, o, m: m * (((n - o) * m).sum(-1) / m.sum(-1))[:, None],
            {"level": "sequence"},
        ),
        FormulaExample(
            "log-ratios of whole answers",
            alignment.log_ratios,
            (normal(3, 5), normal(3, 5), mask),
            lambda n, o, m: m * ((n - o) * m).sum(-1)[:, None],
            {"level": "product"},
        ),
        FormulaExample("ratios", alignment.importance_ratios, (normal(13),), torch.exp),
        FormulaExample(
            "clipped ratios",
            alignment.clipped_ratios,
            (np.exp(normal(13)), advantages),
            lambda r, a: torch.where(a > 0, r.clamp(max=1.28), r.clamp(min=0.8)),
            {"epsilon": 0.2, "epsilon_high": 0.28},
        ),
        FormulaExample(
            "capped ratios",
            alignment.capped_ratios,
            (np.exp(normal(13)),),
            lambda r: r.clamp(max=1.5),
            {"cap": 1.5},
        ),
        FormulaExample("policy", alignment.policy_losses, (np.exp(normal(13)), advantages), lambda r, a: -r * a),
        FormulaExample(
            "policy, weighted",
            alignment.weighted_policy_losses,
            (new, np.exp(normal(13)), advantages),
            lambda n, w, a: -w.detach() * a * n,
        ),
        FormulaExample(
            "k3, weighted",
            alignment.weighted_kl_estimate,
            (new, reference, np.exp(normal(13))),
            lambda n, r, w: w * (torch.expm1(r - n) - (r - n)),
        ),
        FormulaExample(
            "penalised", alignment.penalised_losses, (normal(13), normal(13)), lambda x, k: x + 0.3 * k, {"beta": 0.3}
        ),
        FormulaExample(
            "clipped values",
            alignment.clipped_values,
            (normal(13), normal(13), normal(13)),
            lambda v, o, r: torch.where(
                (o + (v - o).clamp(-0.3, 0.3) - r).abs() > (v - r).abs(), o + (v - o).clamp(-0.3, 0.3).detach(), v
            ),
            {"cliprange_value": 0.3},
        ),
        FormulaExample(
            "values",
            alignment.value_losses,
            (normal(13), normal(13)),
            lambda v, r: F.mse_loss(v, r, reduction="none") / 2,
        ),
        FormulaExample(
            "actor and critic",
            alignment.actor_critic_loss,
            (np.array(0.3), np.array(1.7)),
            lambda p, v: p + 0.3 * v,
            {"vf_coef": 0.3},
        ),
        FormulaExample("grpo", alignment.grpo, (new, old, reference, advantages), group_relative(False)),
        FormulaExample(
            "grpo, weighted",
            alignment.grpo,
            (new, old, reference, advantages),
            group_relative(True),
            {"importance_weighted": True},
        ),
    ]
