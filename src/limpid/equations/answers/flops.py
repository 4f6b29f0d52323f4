"""Published FLOPs, and the share of a peak that they are."""

from __future__ import annotations

from typing import Any

from limpid.equations.answers.kinds import Inputs, each, kind
from limpid.equations.answers.parameters import chinchilla, decoder, entries
from limpid.planning import hardware, time
from limpid.planning.flops import (
    attention_widths,
    forward_flops_per_token,
    megatron_flops,
    palm_flops_per_token,
    weights_that_multiply,
)
from limpid.planning.laws import scaling
from limpid.planning.parameters import count

PEAK_A100 = hardware.DEVICES["a100"].flops_per_second


@kind("flops.per_sequence_multiply_add_counted_2")
def _flops(x: Inputs) -> Any:
    s, d, layers = x["context"], x["d_model"], x["n_layers"]
    model = decoder({"vocab_size": x["vocab_size"], "d_model": d, "n_layers": layers, "n_heads": x.get("n_heads", 1),
                     "d_ff": x.get("d_ff", 4 * d), "learned_positions": s})  # fmt: skip
    weights = weights_that_multiply(model)
    one = {name: 2 * s * entries(model, f"attention.{name}") // layers for name in ("query", "key", "value", "output")}
    square = s * s * model.num_heads * attention_widths(model)
    forward = s * forward_flops_per_token(model, s)
    blocks = forward - 2 * s * weights["logits"]
    return {
        "kqv": one["query"] + one["key"] + one["value"],
        "attention_scores": square,
        "attention_reduce": square,
        "attention_projection": one["output"],
        "mlp_each_matrix": 2 * s * entries(model, "mlp.up") // layers,
        "block": blocks // layers,
        "blocks": blocks,
        "lm_head": 2 * s * weights["logits"],
        "forward": forward,
        "backward": 2 * forward,
        "total": 3 * forward,
    }


@kind("flops.chinchilla_over_6nd")
def _chinchilla_ratio(x: Inputs) -> Any:
    """Their softmax of the scores counts too (3 per score), embedding and logits do not; N includes the embedding."""

    def answer(one: Inputs) -> float:
        model, s = chinchilla(one), one["seq_len"]
        forward = forward_flops_per_token(model, s) - 2 * weights_that_multiply(model)["logits"]
        forward += 3 * model.num_heads * s * model.num_layers
        return 3 * forward / (6 * count(model))

    return each(answer, x, "d_model")


@kind("flops.training_days")
def _days(x: Inputs) -> Any:
    flops = scaling.six_n_d(x["n_params"], x["tokens"])
    return time.training_seconds(flops, x["gpus"], x["peak_flops"], x["mfu"]) / time.DAY


@kind("flops.factor_params_tokens")
def _factor(x: Inputs) -> Any:
    def answer(one: Inputs) -> dict[str, float]:
        both = scaling.six_n_d(one["params_millions"] * 1e6, one["tokens_billions"] * 1e9) / 6
        flops = one["factor"] * both
        return {"flops": flops, "pf_days": time.pf_days(flops)}

    return each(answer, x, "params_millions")


@kind("flops.mfu_hfu_percent")
def _mfu_hfu(x: Inputs) -> Any:
    def answer(one: Inputs) -> dict[str, float]:
        return {"mfu": 100 * _utilisation(one), "hfu": 100 * _utilisation(one, "selective")}

    return each(answer, x, "hidden")


@kind("flops.mfu_percent")
def _mfu(x: Inputs) -> Any:
    return each(lambda one: 100 * _utilisation(one), x, "hidden")


@kind("flops.mfu_palm_percent")
def _palm(x: Inputs) -> Any:
    whole = palm_flops_per_token(x["params"], x["n_layers"], x["heads"], x["head_dim"], x["seq"])
    plain = 6 * x["params"]
    if "tflops_per_gpu" in x:  # 6 N per token, so the rate in tokens follows
        speed = x["tflops_per_gpu"] * 1e12 / plain
        return 100 * float(time.utilisation_of(whole, speed, 1, x["peak_tflops"] * 1e12).value)
    share = [100 * float(time.utilisation_of(each, x["tokens_per_s"], x["chips"], x["peak"]).value)
             for each in (plain, whole)]  # fmt: skip
    return {"without_attention": share[0], "with_attention": share[1]}


def _utilisation(x: Inputs, recompute: bool | str = False) -> float:
    flops = megatron_flops(x["batch"], x.get("seq", 2048), x["n_layers"], x["hidden"], x.get("vocab", 51200), recompute)
    return flops / (x["seconds"] * x["gpus"] * x.get("peak", PEAK_A100))
