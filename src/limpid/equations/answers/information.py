"""Published numbers about entropy, divergence and the losses made of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from limpid import maths
from limpid.equations.answers.kinds import Inputs, a, kind
from limpid.maths import foundations


@kind("entropy", "entropy", "kl_divergence", "cross_entropy")
def _entropy(x: Inputs) -> Any:
    base = x["base"]
    return {
        "h": foundations.entropy(x["p"], base),
        "h_biased_coin": foundations.entropy(x["qk"], base),
        "kl": foundations.kl_divergence(x["pk"], x["qk"], base),
        "cross_entropy": foundations.cross_entropy(x["pk"], x["qk"], base),
    }


@kind("cross_entropy.mean", "softmax_cross_entropy", "LogSoftmax", "NegativeLogLikelihood")
def _cross_entropy(x: Inputs) -> Any:
    return foundations.softmax_cross_entropy(x["logits"], x["targets"])


@kind("cross_entropy.renormalised_probs", "softmax_cross_entropy")
def _cross_entropy_probs(x: Inputs) -> Any:
    return {
        "from_probs": foundations.softmax_cross_entropy(np.log(a(x["probs"])), x["targets"]),
        "from_logits": foundations.softmax_cross_entropy(x["logits"], x["targets"]),
    }


@kind("bce", "binary_cross_entropy")
def _bce(x: Inputs) -> Any:
    probs = a(x["probs"])
    return {
        "from_logits": foundations.binary_cross_entropy(x["logits"], x["targets"]).tolist(),
        "from_probs": foundations.binary_cross_entropy(np.log(probs / (1 - probs)), x["targets"]).tolist(),
    }


@kind("kl.target_relative_to_logpred", "kl_divergence")
def _kl_logs(x: Inputs) -> Any:
    return foundations.kl_divergence(x["targets"], x["log_predictions"], logarithmic=True).tolist()


@kind("kl.bits", "kl_divergence")
def _kl_bits(x: Inputs) -> Any:
    return {
        "kl_fg": foundations.kl_divergence(x["f"], x["g"], 2),
        "kl_gf": foundations.kl_divergence(x["g"], x["f"], 2),
    }


@kind("kl.nats", "kl_divergence")
def _kl_nats(x: Inputs) -> Any:
    return foundations.kl_divergence(x["student"], x["teacher"])


@kind("entropy.joint_bits_and_channel", "entropy")
def _channel(x: Inputs) -> Any:
    zero, one = x["asymmetric_source"]  # a 1 arrives as 0 half the time, a 0 always as it is
    joint = [zero, 0.0, one / 2, one / 2]
    return {
        "h_x": foundations.entropy(x["source"], 2),
        "z_h_y": foundations.entropy([zero + one / 2, one / 2], 2),
        "z_h_xy": foundations.entropy(joint, 2),
    }


@kind("entropy_bits_and_ce_nats", "entropy", "NegativeLogLikelihood")
def _entropy_and_loss(x: Inputs) -> Any:
    log_p = np.log(a(x["preds"]))
    return {
        "entropy_bits": foundations.entropy(x["p"], 2),
        "cross_entropy_nats": maths.NegativeLogLikelihood()(log_p, np.array(x["labels"])),
    }


@kind("huber.mean", "huber")
def _huber(x: Inputs) -> Any:
    each = foundations.huber(x["predictions"], x["targets"], x["delta"])
    return {"mean": float(each.mean()), "sum_over_rows": float(each.mean(-1).sum())}
