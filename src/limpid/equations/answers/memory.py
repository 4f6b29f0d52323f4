"""Published bytes: model states under ZeRO, caches, activations."""

from __future__ import annotations

from typing import Any

from limpid.equations.answers.kinds import Inputs, each, kind
from limpid.planning import memory, number_formats
from limpid.planning.activations import korthikanti
from limpid.planning.architecture import architecture
from limpid.quantities import MOMENTS

GIB = 2.0**30


@kind("bytes.checkpoint_fp32_adam")
def _checkpoint(x: Inputs) -> Any:
    each = x["bytes_per_value"]
    estimate = memory.state_bytes(x["n_params"], 0, 1, each, 0, (x["copies"] - 1) * each)  # weights and two moments
    return {"estimate_gb": estimate / 1e9, "measured_over_estimate": x["measured_file_bytes"] / estimate}


@kind("bytes.mixed_precision_adam")
def _mixed(x: Inputs) -> Any:
    states = number_formats.TRAINING_BYTES["fp16"]
    return {
        "total_gb": _per_parameter("fp16", len(MOMENTS["adam"])) * x["n_params"] / 1e9,
        "fp16_params_gb": memory.state_bytes(x["n_params"], 0, 1, states.weights, 0, 0) / 1e9,
    }


@kind("bytes.weights_gb")
def _weights(x: Inputs) -> Any:
    each = [number_formats.WEIGHT_BYTES[form] for form in ("fp16", "fp8", "int4")]
    return {name: [memory.state_bytes(n, 0, 1, weights, 0, 0) / 1e9 for weights in each] for name, n in x.items()}


@kind("bytes.per_param")
def _per_param(x: Inputs) -> Any:
    states, moments = number_formats.TRAINING_BYTES["bf16"], {rule: len(own) for rule, own in MOMENTS.items()}

    def optimizer(bytes_each: float) -> float:
        return memory.state_bytes(1, 0, 1, 0, 0, bytes_each)

    return {
        "adamw_state": optimizer(states.master + moments["adamw"] * states.moment),
        "adam_8bit_state": optimizer(states.master + moments["adam"]),
        "sgd_momentum_state": optimizer(states.master + moments["momentum"] * states.moment),
        "half_precision_weights": memory.state_bytes(1, 0, 1, number_formats.TRAINING_BYTES["fp16"].weights, 0, 0),
        "fp32_weights": memory.state_bytes(1, 0, 1, number_formats.TRAINING_BYTES["fp32"].weights, 0, 0),
    }


def _per_parameter(precision: str, moments: int) -> float:
    """Bytes of weights, gradients, masters and moments of one parameter."""
    states = number_formats.TRAINING_BYTES[precision]
    return memory.state_bytes(1, 0, 1, states.weights, states.gradients, states.master + moments * states.moment)


@kind("zero.bytes_per_parameter")
def _each_parameter(x: Inputs) -> Any:
    """Whole, and with the optimizer's states divided among d replicas: of the fixed and of the divided bytes."""
    stored = number_formats.TRAINING_BYTES[x["precision"]]
    rest = stored.master + len(MOMENTS["adam"]) * stored.moment
    whole = memory.state_bytes(1, 0, 1, stored.weights, stored.gradients, rest)
    divided = memory.state_bytes(1, 1, x["devices"], stored.weights, stored.gradients, rest)
    return {"whole": whole, "divided": divided}


@kind("zero.model_state_bytes_per_device")
def _zero(x: Inputs) -> Any:
    each_stage = [
        memory.state_bytes(x["n_params"], stage, x["devices"], x["param_bytes"], x["grad_bytes"], x["optimizer_bytes"])
        / 1e9
        for stage in range(4)
    ]
    return dict(zip(("baseline_gb", "stage1_gb", "stage2_gb", "stage3_gb"), each_stage, strict=True))


@kind("zero.table_gb_stage1_2_3")
def _zero_table(x: Inputs) -> Any:
    return {
        str(devices): [memory.state_bytes(x["n_params"], stage, devices, 2, 2, 12) / 1e9 for stage in (1, 2, 3)]
        for devices in x["devices"]
    }


def cache(x: Inputs) -> float:
    """Bytes of cache per token of a model that a row describes."""
    layers = {"num_layers": x["n_layers"], "vocab_size": 1, "d_ff": 1, "num_heads": 1, "d_model": 1}
    if "latent" in x:
        return memory.cache_bytes_per_token(
            architecture(**layers, kv_latent=x["latent"], query_latent=0, d_rotary=0, d_value=1), x["bytes"]
        )
    if "hidden" in x:
        return memory.cache_bytes_per_token(architecture(**layers, num_kv_heads=1, d_head=x["hidden"]), x["bytes"])
    return memory.cache_bytes_per_token(
        architecture(**layers, num_kv_heads=x["n_kv_heads"], d_head=x["head_dim"]), x["bytes"]
    )


@kind("kv_cache.bytes_per_token")
def _cache(x: Inputs) -> Any:
    return each(cache, x, "n_layers")


@kind("kv_cache.kib_per_token")
def _cache_kib(x: Inputs) -> Any:
    return each(lambda one: cache(one) / 1024, x, "n_layers")


@kind("kv_cache.gib")
def _cache_gib(x: Inputs) -> Any:
    return {name: [cache(model) * tokens / GIB for tokens in x["tokens"]] for name, model in x["models"].items()}


@kind("kv_cache.bytes_per_token_and_request")
def _request(x: Inputs) -> Any:
    return {"per_token": cache(x), "per_request_gb": cache(x) * x["max_tokens"] / 1e9}


@kind("activation.selective_recompute")
def _selective(x: Inputs) -> Any:
    def answer(one: Inputs) -> dict[str, float]:
        found = korthikanti(one["seq"], 1, one["hidden"], one["heads"])
        whole, without = found["no_parallel"], found["tensor_selective"]
        return {"five_as_over_h": (whole - without) / (one["seq"] * one["hidden"]), "saving": 1 - without / whole}

    return each(answer, x, "hidden")


@kind("activation.per_layer_bytes")
def _per_layer(x: Inputs) -> Any:
    return korthikanti(x["seq"], x["micro_batch"], x["hidden"], x["heads"], x["tensor_parallel"])


@kind("activation.embedding_and_head_share")
def _share(x: Inputs) -> Any:
    """Embedding dropout, final norm, output product and fp32 logits beside the blocks. Source: their section 4.3."""
    s, h, t, v, p = (x[name] for name in ("seq", "hidden", "tensor", "vocab", "pipeline"))
    blocks = korthikanti(s, 1, h, x["heads"], t)["tensor_sequence"] * x["layers"]
    ends = s * h * p / t + (4 * s * h / t * (1 + v / h) if p == 1 else 0.0)
    return ends / blocks
