"""Published numbers about choosing tokens, and how fast that can be."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from limpid import planning
from limpid.equations.answers.kinds import Inputs, a, kind
from limpid.maths import foundations


@kind("sampling.top_p_filter", "top_p")
def _top_p(x: Inputs) -> Any:
    return foundations.top_p(x["probs"], x["top_p"], renormalise=False).tolist()


@kind("sampling.min_p_filter", "min_p")
def _min_p(x: Inputs) -> Any:
    probs = a(x["probs"])
    return np.where(foundations.min_p(probs / probs.sum(-1, keepdims=True), x["min_p"]) > 0, probs, 0.0).tolist()


@kind("sampling.epsilon_filter", "epsilon_cutoff")
def _epsilon(x: Inputs) -> Any:
    return foundations.epsilon_cutoff(x["probs"], x["epsilon"], renormalise=False).tolist()


@kind("sampling.repetition_penalty", "repetition_penalty")
def _repetition(x: Inputs) -> Any:
    return foundations.repetition_penalty(x["logits"], np.arange(len(x["logits"])), x["penalty"]).tolist()


@kind("sampling.top_k_kept_count", "top_k")
def _top_k(x: Inputs) -> Any:
    return int((foundations.top_k(foundations.softmax(x["logits"]), max(x["k"], x["min_tokens"])) > 0).sum())


@kind("sampling.typical_filter", "typical")
def _typical(x: Inputs) -> Any:
    return foundations.typical(x["probs"], x["mass"], renormalise=False).tolist()


@kind("sampling.eta_filter", "eta_cutoff")
def _eta(x: Inputs) -> Any:
    return foundations.eta_cutoff(x["probs"], x["epsilon"], renormalise=False).tolist()


@kind("sampling.repeated_ngram", "repeated_ngram")
def _ngram(x: Inputs) -> Any:
    return [foundations.repeated_ngram(row, x["size"], x["vocab"]).astype(int).tolist() for row in x["tokens"]]


@kind("speculative.operations", "speculative_operations")
def _operations(x: Inputs) -> Any:
    return [foundations.speculative_operations(*row) for row in zip(x["alpha"], x["gamma"], strict=True)]


@kind("beam.sequence_probability", "joint_log_probability")
def _beam(x: Inputs) -> Any:
    return {
        name: math.exp(foundations.joint_log_probability(x[key]))
        for name, key in (("greedy", "greedy"), ("beam", "beam2"))
    }


@kind("speculative.expected_speedup", "speculative_speedup")
def _speculative(x: Inputs) -> Any:
    tokens, speedup = foundations.speculative_speedup(x["alpha"], x["gamma"], x["draft_cost"])
    return {"tokens_per_round": tokens, "speedup": speedup}


@kind("decode.step_time_memory_bound")
def _decode_step(x: Inputs) -> Any:
    seconds = planning.decode_step_seconds(x["weight_bytes"], x["kv_bytes"], x["chips"] * x["bandwidth"])
    per_second = x["batch"] / seconds
    return {"ms": 1e3 * seconds, "tokens_per_s": per_second, "tokens_per_s_per_chip": per_second / x["chips"]}


@kind("decode.critical_batch")
def _critical(x: Inputs) -> Any:
    return {
        "bf16_weights": planning.critical_batch(x["peak"], x["bandwidth"], bytes_per_weight=2),
        "int8_weights": planning.critical_batch(x["peak"], x["bandwidth"], bytes_per_weight=1),
    }
