"""Which function here answers each kind of published number."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from limpid import maths, plan
from limpid.maths.activation import GELU, GELUTanh, Sigmoid, SiLU
from limpid.maths.operation import Array
from limpid.maths.preference import log_sigmoid

Inputs = dict[str, Any]
Answer = Callable[[Inputs], Any]


@dataclass(frozen=True)
class Kind:
    """What computes one kind of published number, and which entries of the catalogue it puts to the test."""

    answer: Answer
    tests: tuple[str, ...]


KINDS: dict[str, Kind] = {}


def kind(name: str, *tests: str) -> Callable[[Answer], Answer]:
    """Registers what answers a kind."""

    def register(answer: Answer) -> Answer:
        KINDS[name] = Kind(answer, tests)
        return answer

    return register


def a(values: Any) -> Array:
    return np.asarray(values, dtype=np.float64)


@kind("softmax", "softmax")
def _softmax(x: Inputs) -> Any:
    return [maths.softmax(row) for row in x["x"]]


@kind("softmax.all", "softmax")
def _softmax_all(x: Inputs) -> Any:
    return maths.softmax(x["x"], axis=None).tolist()


@kind("softmax.rows", "softmax")
def _softmax_rows(x: Inputs) -> Any:
    return {"small": maths.softmax(x["x"]).tolist(), "large": maths.softmax(x["big"]).tolist()}


@kind("log_softmax", "log_softmax")
def _log_softmax(x: Inputs) -> Any:
    return maths.log_softmax(x["x"]).tolist()


@kind("sigmoid_and_log_sigmoid", "Sigmoid")
def _sigmoid(x: Inputs) -> Any:
    return {"sigmoid": Sigmoid()(x["x"]).tolist(), "log_sigmoid": log_sigmoid(a(x["log_x"])).tolist()}


@kind("entropy", "entropy", "kl_divergence", "cross_entropy")
def _entropy(x: Inputs) -> Any:
    base = x["base"]
    return {
        "h": maths.entropy(x["p"], base),
        "h_biased_coin": maths.entropy(x["qk"], base),
        "kl": maths.kl_divergence(x["pk"], x["qk"], base),
        "cross_entropy": maths.cross_entropy(x["pk"], x["qk"], base),
    }


@kind("gelu.exact", "GELU")
def _gelu(x: Inputs) -> Any:
    return GELU()(x["x"]).tolist()


@kind("gelu.both", "GELU", "GELUTanh")
def _gelu_both(x: Inputs) -> Any:
    return {"exact": GELU()(x["x"]).tolist(), "tanh": GELUTanh()(x["x"]).tolist()}


@kind("activations", "GELU", "GELUTanh", "SiLU")
def _activations(x: Inputs) -> Any:
    found = {"gelu_tanh": GELUTanh(), "gelu_erf": GELU(), "silu": SiLU()}
    return {name: activation(x["x"]).tolist() for name, activation in found.items()}


@kind("rmsnorm", "RMSNorm")
def _rmsnorm(x: Inputs) -> Any:
    return maths.RMSNorm(x["eps"])(x["x"], x["weight"]).tolist()


@kind("layernorm", "LayerNorm")
def _layernorm(x: Inputs) -> Any:
    return maths.LayerNorm(x["eps"])(x["x"], x["weight"], x["bias"]).tolist()


@kind("swiglu", "Gated", "Linear")
def _swiglu(x: Inputs) -> Any:
    weight, bias = np.full(x["shape"], float(x["weight"])), np.full(x["shape"][0], float(x["bias"]))
    gate, up = (maths.Linear()(a(x["x"]), weight, bias) for _ in range(2))
    return maths.Gated()(gate, up).tolist()


@kind("cross_entropy.mean", "softmax_cross_entropy", "LogSoftmax", "NegativeLogLikelihood")
def _cross_entropy(x: Inputs) -> Any:
    return maths.softmax_cross_entropy(x["logits"], x["targets"])


@kind("cross_entropy.renormalised_probs", "softmax_cross_entropy")
def _cross_entropy_probs(x: Inputs) -> Any:
    return {
        "from_probs": maths.softmax_cross_entropy(np.log(a(x["probs"])), x["targets"]),
        "from_logits": maths.softmax_cross_entropy(x["logits"], x["targets"]),
    }


@kind("bce", "binary_cross_entropy")
def _bce(x: Inputs) -> Any:
    probs = a(x["probs"])
    return {
        "from_logits": maths.binary_cross_entropy(x["logits"], x["targets"]).tolist(),
        "from_probs": maths.binary_cross_entropy(np.log(probs / (1 - probs)), x["targets"]).tolist(),
    }


@kind("kl.target_relative_to_logpred", "kl_divergence")
def _kl_logs(x: Inputs) -> Any:
    return maths.kl_divergence(x["targets"], x["log_predictions"], logarithmic=True).tolist()


@kind("kl.bits", "kl_divergence")
def _kl_bits(x: Inputs) -> Any:
    return {"kl_fg": maths.kl_divergence(x["f"], x["g"], 2), "kl_gf": maths.kl_divergence(x["g"], x["f"], 2)}


@kind("kl.nats", "kl_divergence")
def _kl_nats(x: Inputs) -> Any:
    return maths.kl_divergence(x["student"], x["teacher"])


@kind("entropy.joint_bits_and_channel", "entropy")
def _channel(x: Inputs) -> Any:
    zero, one = x["asymmetric_source"]  # a 1 arrives as 0 half the time, a 0 always as it is
    joint = [zero, 0.0, one / 2, one / 2]
    return {
        "h_x": maths.entropy(x["source"], 2),
        "z_h_y": maths.entropy([zero + one / 2, one / 2], 2),
        "z_h_xy": maths.entropy(joint, 2),
    }


@kind("entropy_bits_and_ce_nats", "entropy", "NegativeLogLikelihood")
def _entropy_and_loss(x: Inputs) -> Any:
    log_p = np.log(a(x["preds"]))
    return {
        "entropy_bits": maths.entropy(x["p"], 2),
        "cross_entropy_nats": maths.NegativeLogLikelihood()(log_p, np.array(x["labels"])),
    }


@kind("attention.single_head", "attention")
def _attention(x: Inputs) -> Any:
    tokens = a(x["x"])
    query, key, value = (tokens @ a(x[name]) for name in ("w_q", "w_k", "w_v"))
    return maths.attention(query, key, value, scale=None if x["scaled"] else 1.0).tolist()


@kind("attention.sliding_window_two_sided", "attention")
def _window(x: Inputs) -> Any:
    return maths.attention(x["q"], x["k"], x["v"], window=x["window"] + 1).tolist()


@kind("positional.sinusoidal", "SinusoidalPositions")
def _sinusoidal(x: Inputs) -> Any:
    table = maths.SinusoidalPositions(max(x["positions"]) + 1, x["d_model"], x["base"])()
    return table[x["positions"]].tolist()


@kind("gradient.softmax_matmul", "softmax", "matmul")
def _softmax_matmul(x: Inputs) -> Any:
    first, second = a(x["a"]), a(x["b"])
    product = first @ second
    ones = np.ones((2, 2))
    p_bar, second_bar = maths.matmul.backward(ones, maths.softmax(product), second)
    (product_bar,) = maths.softmax.backward(p_bar, product)
    first_bar, also = maths.matmul.backward(product_bar, first, second)
    return [np.asarray(first_bar).tolist(), np.asarray(a(second_bar) + a(also)).tolist()]


@kind("gradient.cross_entropy", "softmax_cross_entropy", "matmul")
def _loss_matmul(x: Inputs) -> Any:
    first, second = a(x["a"]), a(x["b"])
    (logits_bar, _) = maths.softmax_cross_entropy.backward(1.0, first @ second, a(x["targets"]))
    return [np.asarray(bar).tolist() for bar in maths.matmul.backward(logits_bar, first, second)]


@kind("gradient.sigmoid_neuron", "Sigmoid")
def _neuron(x: Inputs) -> Any:
    w, inputs = a(x["w"]), np.append(a(x["x"]), 1.0)
    y, saved = Sigmoid().forward(a(w @ inputs))
    (slope,) = Sigmoid().backward(a(1.0), saved)
    return {"forward": float(y), "dx": (slope * w[:2]).tolist(), "dw": (slope * inputs).tolist()}


@kind("adamw.single_step", "Adam", "AdamW")
def _adamw(x: Inputs) -> Any:
    options = {name: x[name] for name in ("beta1", "beta2", "eps")}
    rules = {"adam": maths.Adam(0.0, **options), "adamw": maths.AdamW(x["adamw_weight_decay"], **options)}
    start = {"m": np.zeros(4), "v": np.zeros(4)}
    return {name: rule.apply(a(x["x"]), a(x["grad"]), start, x["lr"], 1, True)[0] for name, rule in rules.items()}


@kind("adamw.linear_layer", "AdamW", "Linear")
def _adamw_layer(x: Inputs) -> Any:
    rule = maths.AdamW(x["weight_decay"], x["beta1"], x["beta2"], x["eps"])
    learned = {"weight": a(x["weight_out_by_in"]), "bias": a(x["bias"])}
    moments = {name: {"m": np.zeros_like(p), "v": np.zeros_like(p)} for name, p in learned.items()}
    for number, batch in enumerate(x["batches"], 1):
        y, saved = maths.Linear().forward(a(batch), learned["weight"], learned["bias"])
        bars = dict(zip(("weight", "bias"), maths.Linear().backward(np.ones_like(y), saved)[1:], strict=True))
        for name, bar in bars.items():
            learned[name], moments[name] = rule.apply(learned[name], bar, moments[name], x["lr"], number, True)
    return {name: p.tolist() for name, p in learned.items()}


@kind("adam.moments", "Adam")
def _moments(x: Inputs) -> Any:
    rule = maths.Adam(0.0, x["beta1"], x["beta2"], x["eps"])
    moved, moments = rule.apply(a(x["x"]), a(x["grad"]), {"m": a(0.0), "v": a(0.0)}, x["lr"], 1, False)
    return {"x": moved, **moments}


@kind("sgd.linear_regression", "SGD", "Linear")
def _regression(x: Inputs) -> Any:
    rule, points, y = maths.SGD(), a(x["x"]), a(x["y"])
    weight, bias = np.zeros((1, points.shape[1])), np.zeros(1)
    for number in range(1, x["steps"] + 1):
        predicted, saved = maths.Linear().forward(points, weight, bias)
        _, weight_bar, bias_bar = maths.Linear().backward(2 * (predicted - y[:, None]), saved)
        weight = rule.apply(weight, weight_bar, {}, x["lr"], number, False)[0]
        bias = rule.apply(bias, bias_bar, {}, x["lr"], number, False)[0]
    return {"weight": weight[0].tolist(), "bias": float(bias[0])}


@kind("sgd.quadratic", "SGD")
def _quadratic(x: Inputs) -> Any:
    rule, at = maths.SGD(), a(x["x0"])
    for number in range(1, x["steps"] + 1):
        at = rule.apply(at, 2 * (at - x["target"]), {}, x["lr"], number, False)[0]
    return float(at)


@kind("schedule.values", "warmup", "linear_schedule", "cosine_schedule")
def _schedules(x: Inputs) -> Any:
    shapes = {"linear": maths.linear_schedule, "cosine": maths.cosine_schedule}
    return {name: [_scheduled(x, shapes[name], step) for step in range(x["steps"])] for name in x["kinds"]}


@kind("schedule.cosine_with_warmup", "warmup", "cosine_schedule")
def _cosine(x: Inputs) -> Any:
    def waves(progress: float) -> float:
        return float(maths.cosine_schedule(progress, x["cycles"]))

    return [_scheduled({**x, "steps": x["total"]}, waves, step) for step in x["steps"]]


def _scheduled(x: Inputs, shape: Callable[[float], float], step: int) -> float:
    """Learning rate after warm-up along a shape."""
    if step < x["warmup"]:
        return float(x["lr"] * maths.warmup(step, x["warmup"]))
    return float(x["lr"] * shape((step - x["warmup"]) / (x["steps"] - x["warmup"])))


@kind("sampling.top_p_filter", "top_p")
def _top_p(x: Inputs) -> Any:
    return maths.top_p(x["probs"], x["top_p"], renormalise=False).tolist()


@kind("sampling.min_p_filter", "min_p")
def _min_p(x: Inputs) -> Any:
    probs = a(x["probs"])
    return np.where(maths.min_p(probs / probs.sum(-1, keepdims=True), x["min_p"]) > 0, probs, 0.0).tolist()


@kind("sampling.epsilon_filter", "epsilon_cutoff")
def _epsilon(x: Inputs) -> Any:
    return maths.epsilon_cutoff(x["probs"], x["epsilon"], renormalise=False).tolist()


@kind("sampling.repetition_penalty", "repetition_penalty")
def _repetition(x: Inputs) -> Any:
    return maths.repetition_penalty(x["logits"], np.arange(len(x["logits"])), x["penalty"]).tolist()


@kind("sampling.top_k_kept_count", "top_k")
def _top_k(x: Inputs) -> Any:
    return int((maths.top_k(maths.softmax(x["logits"]), max(x["k"], x["min_tokens"])) > 0).sum())


@kind("beam.sequence_probability", "joint_log_probability")
def _beam(x: Inputs) -> Any:
    return {
        name: math.exp(maths.joint_log_probability(x[key])) for name, key in (("greedy", "greedy"), ("beam", "beam2"))
    }


@kind("speculative.expected_speedup", "speculative_speedup")
def _speculative(x: Inputs) -> Any:
    tokens, speedup = maths.speculative_speedup(x["alpha"], x["gamma"], x["draft_cost"])
    return {"tokens_per_round": tokens, "speedup": speedup}


@kind("decode.step_time_memory_bound")
def _decode_step(x: Inputs) -> Any:
    seconds = plan.decode_step_seconds(x["weight_bytes"], x["kv_bytes"], x["chips"] * x["bandwidth"])
    per_second = x["batch"] / seconds
    return {"ms": 1e3 * seconds, "tokens_per_s": per_second, "tokens_per_s_per_chip": per_second / x["chips"]}


@kind("decode.critical_batch")
def _critical(x: Inputs) -> Any:
    return {
        "bf16_weights": plan.critical_batch(x["peak"], x["bandwidth"], bytes_per_weight=2),
        "int8_weights": plan.critical_batch(x["peak"], x["bandwidth"], bytes_per_weight=1),
    }


@kind("dpo.sigmoid", "dpo")
def _dpo(x: Inputs) -> Any:
    return maths.dpo(*(x[name] for name in PAIR), x["beta"]).tolist()


PAIR = ("policy_chosen", "policy_rejected", "ref_chosen", "ref_rejected")


@kind("dpo.mean_and_rewards", "dpo", "implicit_reward")
def _dpo_rewards(x: Inputs) -> Any:
    return {
        "loss": maths.dpo(*(x[name] for name in PAIR), x["beta"]).mean(),
        "chosen_rewards": maths.implicit_reward(x["policy_chosen"], x["ref_chosen"], x["beta"]).tolist(),
        "rejected_rewards": maths.implicit_reward(x["policy_rejected"], x["ref_rejected"], x["beta"]).tolist(),
    }


@kind("dpo.with_sft_term", "dpo", "surprise")
def _dpo_sft(x: Inputs) -> Any:
    preference = maths.dpo(x["margin"], 0.0, 0.0, 0.0, 1.0)
    return float(preference + x["sft_weight"] * x["tokens"] * maths.surprise(1 / x["vocab"]))


@kind("ppo.clipped_loss", "ppo")
def _ppo(x: Inputs) -> Any:
    return float(maths.ppo(math.log(x["ratio"]), 0.0, x["advantage"], x["epsilon"]))


@kind("rl.rewards_with_kl", "rewards_with_kl")
def _kl_rewards(x: Inputs) -> Any:
    return maths.rewards_with_kl(x["scores"], x["logprobs"], x["ref_logprobs"], x["kl_coefficient"]).tolist()


@kind("rl.lambda_returns", "lambda_returns")
def _returns(x: Inputs) -> Any:
    return maths.lambda_returns(x["rewards"], x["discounts"], x["values"], x["lam"]).tolist()


@kind("grpo.objective_importance_weighted_k3", "grpo")
def _grpo(x: Inputs) -> Any:
    old = np.log(a(x["old"]))
    return maths.grpo(
        old + np.log(a(x["rhos"])), old, np.log(a(x["ref"])), x["advantages"], x["epsilon"], x["beta"],
        importance_weighted=True,
    )  # fmt: skip
