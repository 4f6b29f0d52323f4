"""Which function of the planner answers each kind of published number about size, memory, scale, clusters, LoRA."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from limpid.equations.answers import Inputs, kind
from limpid.errors import ConfigError
from limpid.plan import cluster, memory, scaling
from limpid.plan.activations import korthikanti
from limpid.plan.architecture import Architecture
from limpid.plan.figure import evaluate
from limpid.plan.flops import attention_widths, forward_flops_per_token, weights_that_multiply
from limpid.plan.parameters import count, pieces

PEAK_A100, GIB = cluster.DEVICES["a100"].flops, 2.0**30
NORMS = {"layernorm": "layer", "layernorm_no_bias": "layer_no_bias", "rmsnorm": "rms"}
THEIRS = {
    "vocab_size", "d_model", "n_layers", "d_ff", "n_heads", "n_kv_heads", "head_dim", "mlp", "norm", "norms_per_layer",
    "tied_embeddings", "learned_positions", "qkv_bias", "out_bias", "mlp_bias", "qk_norm", "embedding_norm",
    "final_norm",
}  # fmt: skip


def decoder(x: Inputs) -> Architecture:
    """A decoder as the rows describe it."""
    if set(x) - THEIRS:
        raise ConfigError(
            f"a decoder has no {', '.join(sorted(set(x) - THEIRS))}: known are {', '.join(sorted(THEIRS))}"
        )
    return Architecture(
        vocab_size=x["vocab_size"], d_model=x["d_model"], num_layers=x["n_layers"], num_heads=x["n_heads"],
        num_kv_heads=x.get("n_kv_heads") or x["n_heads"], d_head=x.get("head_dim") or 0, d_ff=x["d_ff"],
        gated=x.get("mlp", "plain") == "gated", norm=NORMS[x.get("norm", "layernorm")],  # type: ignore[arg-type]
        norms_per_layer=x.get("norms_per_layer", 2), tied=x.get("tied_embeddings", True),
        learned_positions=x.get("learned_positions") or 0, qkv_bias=x.get("qkv_bias", False),
        out_bias=x.get("out_bias", False), mlp_bias=x.get("mlp_bias", False),
        qk_norm="head" if x.get("qk_norm") else "none", embedding_norm=x.get("embedding_norm", False),
        final_norm=x.get("final_norm", True),
    )  # fmt: skip


def each(answer: Callable[[Inputs], Any], x: Any, key: str) -> Any:
    """The answer for one model, for a list of them, or by name; a model is what has `key`."""
    if isinstance(x, list):
        return [answer(one) for one in x]
    return answer(x) if key in x else {name: answer(one) for name, one in x.items()}


def entries(model: Architecture, *names: str) -> int:
    """Learned numbers of some pieces, all copies."""
    return sum(int(evaluate(p.equation, model.sizes)) for p in pieces(model) if p.name in names)


@kind("params.decoder_total")
def _total(x: Inputs) -> Any:
    return each(lambda one: count(decoder(one)), x, "d_model")


@kind("params.decoder_total_millions")
def _millions(x: Inputs) -> Any:
    return each(lambda one: count(decoder(one)) / 1e6, x, "d_model")


@kind("params.decoder_total_billions")
def _billions(x: Inputs) -> Any:
    return each(lambda one: count(decoder(one)) / 1e9, x, "d_model")


@kind("params.decoder_total_and_non_embedding")
def _non_embedding(x: Inputs) -> Any:
    def answer(one: Inputs) -> dict[str, int]:
        model = decoder(one)
        outside = entries(model, "embedding.tokens", "embedding.positions", "logits.weight")
        return {"total": count(model), "non_embedding": count(model) - outside}

    return each(answer, x, "d_model")


@kind("params.breakdown")
def _breakdown(x: Inputs) -> Any:
    model = decoder(x)
    norm = entries(model, "norms.blocks") // model.norms_per_layer // model.num_layers
    attention, mlp = (count(model, component) // model.num_layers + norm for component in ("attention", "mlp"))
    return {
        "token_embedding": entries(model, "embedding.tokens"),
        "position_embedding": entries(model, "embedding.positions"),
        "attention_layer_incl_norm": attention,
        "mlp_layer_incl_norm": mlp,
        "block": attention + mlp,
        "blocks_total": model.num_layers * (attention + mlp),
        "total": count(model),
    }


@kind("params.breakdown_billions")
def _breakdown_billions(x: Inputs) -> Any:
    model = decoder({**x, "mlp": "gated", "norm": "rmsnorm", "tied_embeddings": False})
    found = {"mlp": count(model, "mlp"), "attention": count(model, "attention"), "total": count(model),
             "embedding_and_head": count(model, "embedding", "logits")}  # fmt: skip
    return {name: number / 1e9 for name, number in found.items()}


@kind("params.bert_encoder_total")
def _bert(x: Inputs) -> Any:
    def answer(one: Inputs) -> int:
        heads = one.get("n_heads") or max(1, one["d_model"] // 64)  # the count does not depend on them
        return count(
            Architecture(
                vocab_size=one["vocab_size"], d_model=one["d_model"], num_layers=one["n_layers"], num_heads=heads,
                d_ff=one["d_ff"], learned_positions=one["max_positions"], token_types=one["token_types"],
                pooler=one["pooler"], qkv_bias=True, out_bias=True, mlp_bias=True, head=False, final_norm=False,
                embedding_norm=True,
            )
        )  # fmt: skip

    return each(answer, x, "d_model")


@kind("params.encoder_decoder_millions")
def _encoder_decoder(x: Inputs) -> Any:
    def answer(one: Inputs) -> float:
        model = Architecture(
            vocab_size=one["vocab_size"], d_model=one["d_model"], num_layers=one["n_layers"],
            encoder_layers=one["n_layers"], num_heads=one.get("n_heads") or one["d_model"] // 64, d_ff=one["d_ff"],
            mlp_bias=True, final_norm=False,
        )  # fmt: skip
        return count(model) / 1e6

    return each(answer, x, "d_model")


@kind("params.gpt3_weight_matrices")
def _matrices(x: Inputs) -> Any:
    model = decoder({key: value for key, value in x.items() if key in THEIRS} | {
        "tied_embeddings": not x["untied"], "norm": "layernorm", "norms_per_layer": 2 * x["norms"],
        "final_norm": x["norms"], **dict.fromkeys(("qkv_bias", "out_bias", "mlp_bias"), x["biases"]),
    })  # fmt: skip
    return {
        "embedding": entries(model, "embedding.tokens"),
        "each_of_q_k_v_o": entries(model, "attention.query"),
        "mlp_up": entries(model, "mlp.up"),
        "mlp_down": entries(model, "mlp.output"),
        "total": count(model),
    }


@kind("params.megatron_formula_billions")
def _megatron(x: Inputs) -> Any:
    """GPT with a vocabulary of 51,200 and 2,048 learned positions, as in the paper's table."""

    def answer(one: Inputs) -> float:
        model = decoder({"vocab_size": one.get("vocab_size", 51200), "d_model": one["hidden"],
                         "n_layers": one["n_layers"], "n_heads": one["heads"], "d_ff": 4 * one["hidden"],
                         "learned_positions": one.get("seq", 2048), "qkv_bias": True, "out_bias": True,
                         "final_norm": False, "mlp_bias": True})  # fmt: skip
        return count(model) / 1e9

    return each(answer, x, "hidden")


@kind("params.chinchilla_table_a9_millions")
def _table_a9(x: Inputs) -> Any:
    return each(lambda one: count(chinchilla(one)) / 1e6, x, "d_model")


def chinchilla(x: Inputs) -> Architecture:
    """Their transformer: heads of kv_size, biases, Transformer-XL's relative positions; norm gains are not counted."""
    return Architecture(
        vocab_size=x["vocab_size"], d_model=x["d_model"], num_layers=x["n_layers"], num_heads=x["n_heads"],
        d_head=x["kv_size"], d_ff=x["d_ff"], norm="none", relative_positions=True, qkv_bias=True, out_bias=True,
        mlp_bias=True,
    )  # fmt: skip


@kind("consistency.heads_times_head_dim")
def _heads(x: Inputs) -> Any:
    return {"d_model": x["n_heads"] * x["head_dim"]}


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
    return cluster.training_seconds(flops, x["gpus"], x["peak_flops"], x["mfu"]) / cluster.DAY


@kind("flops.factor_params_tokens")
def _factor(x: Inputs) -> Any:
    def answer(one: Inputs) -> dict[str, float]:
        both = scaling.six_n_d(one["params_millions"] * 1e6, one["tokens_billions"] * 1e9) / 6
        flops = one["factor"] * both
        return {"flops": flops, "pf_days": flops / (1e15 * cluster.DAY)}

    return each(answer, x, "params_millions")


@kind("flops.mfu_hfu_percent")
def _mfu_hfu(x: Inputs) -> Any:
    def answer(one: Inputs) -> dict[str, float]:
        return {"mfu": 100 * _utilisation(one), "hfu": 100 * _utilisation(one, "selective")}

    return each(answer, x, "hidden")


@kind("flops.mfu_percent")
def _mfu(x: Inputs) -> Any:
    return each(lambda one: 100 * _utilisation(one), x, "hidden")


def _utilisation(x: Inputs, recompute: bool | str = False) -> float:
    flops = cluster.megatron_flops(
        x["batch"], x.get("seq", 2048), x["n_layers"], x["hidden"], x.get("vocab", 51200), recompute
    )
    return flops / (x["seconds"] * x["gpus"] * x.get("peak", PEAK_A100))


@kind("flops.mfu_palm_percent")
def _palm(x: Inputs) -> Any:
    attention = 12 * x["n_layers"] * x["heads"] * x["head_dim"] * x["seq"]
    plain = 6 * x["params"]
    if "tflops_per_gpu" in x:  # 6 N per token, so the rate in tokens follows
        speed = x["tflops_per_gpu"] * 1e12 / plain
        return 100 * float(cluster.utilisation_of(plain + attention, speed, 1, x["peak_tflops"] * 1e12).value)
    share = [100 * float(cluster.utilisation_of(each, x["tokens_per_s"], x["chips"], x["peak"]).value)
             for each in (plain, plain + attention)]  # fmt: skip
    return {"without_attention": share[0], "with_attention": share[1]}


@kind("flops.from_hardware")
def _hardware(x: Inputs) -> Any:
    return each(lambda one: one["hours"] * 3600 * one["gpus"] * one["sustained"], x, "hours")


@kind("bytes.checkpoint_fp32_adam")
def _checkpoint(x: Inputs) -> Any:
    estimate = x["n_params"] * x["bytes_per_value"] * x["copies"]
    return {"estimate_gb": estimate / 1e9, "measured_over_estimate": x["measured_file_bytes"] / estimate}


@kind("bytes.mixed_precision_adam")
def _mixed(x: Inputs) -> Any:
    states = memory.STATES["fp16"]
    return {
        "total_gb": x["n_params"] * x["bytes_per_param"] / 1e9,
        "fp16_params_gb": x["n_params"] * states.weights / 1e9,
    }


@kind("bytes.weights_gb")
def _weights(x: Inputs) -> Any:
    return {name: [n * memory.WEIGHT_BYTES[form] / 1e9 for form in ("fp16", "fp8", "int4")] for name, n in x.items()}


@kind("bytes.per_param")
def _per_param(x: Inputs) -> Any:
    states, moments = memory.STATES["bf16"], memory.MOMENTS
    return {
        "adamw_state": states.master + moments["adamw"] * states.moment,
        "adam_8bit_state": states.master + moments["adam"],
        "sgd_momentum_state": states.master + moments["momentum"] * states.moment,
        "half_precision_weights": memory.STATES["fp16"].weights,
        "fp32_weights": memory.STATES["fp32"].weights,
    }


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


@kind("deepspeed.zero2_estimate")
def _deepspeed(x: Inputs) -> Any:
    """DeepSpeed's own rules: fp16 weights and gradients everywhere, 16 bytes a parameter divided or offloaded."""
    n, devices, factor = x["n_params"], x["gpus"] * x["nodes"], x["buffer_factor"]
    return {
        "gpu_offload": 2 * n / GIB,
        "gpu_no_offload": (4 * n + 16 * n / devices) / GIB,
        "cpu_offload": n * max(4 * devices, 16) * factor / GIB,
        "cpu_no_offload": n * 4 * x["gpus"] * factor / GIB,
    }


def cache(x: Inputs) -> float:
    """Bytes of cache per token of a model that a row describes."""
    layers = {"num_layers": x["n_layers"], "vocab_size": 1, "d_ff": 1, "num_heads": 1, "d_model": 1}
    if "latent" in x:
        return memory.cache_bytes_per_token(Architecture(**layers, kv_latent=x["latent"]), x["bytes"])
    if "hidden" in x:
        return memory.cache_bytes_per_token(Architecture(**layers, num_kv_heads=1, d_head=x["hidden"]), x["bytes"])
    return memory.cache_bytes_per_token(
        Architecture(**layers, num_kv_heads=x["n_kv_heads"], d_head=x["head_dim"]), x["bytes"]
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


@kind("kv_cache.ratio")
def _cache_ratio(x: Inputs) -> Any:
    return [each_model / x["bytes_per_token"][0] for each_model in x["bytes_per_token"]]


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


@kind("activation.long_sequence_gib")
def _long(x: Inputs) -> Any:
    hidden = x["batch"] * x["seq"] * x["hidden"] * 2 / GIB
    return {"hidden_state_bf16": hidden, "all_layers": hidden * x["layers"],
            "logits_fp32": x["batch"] * x["seq"] * x["vocab"] * 4 / GIB}  # fmt: skip


@kind("activation.gradient_checkpoint_tb")
def _checkpoints(x: Inputs) -> Any:
    return x["bytes"] * x["hidden"] * x["tokens_per_batch"] * x["checkpoints_per_layer"] * x["layers"] / 1e12


@kind("scaling.flops_6nd")
def _six_n_d(x: Inputs) -> Any:
    return [scaling.six_n_d(n, d) for n, d in zip(x["params"], x["tokens"], strict=True)]


@kind("scaling.loglog_slope")
def _slopes(x: Inputs) -> Any:
    return {"a": scaling.power_law(x["flops"], x["params"])[1], "b": scaling.power_law(x["flops"], x["tokens"])[1]}


@kind("scaling.loglog_fit")
def _loglog(x: Inputs) -> Any:
    k, slope = scaling.power_law(x["params"], x["tokens"])
    return {"slope": slope, "intercept": math.log10(k)}


@kind("scaling.rounded_constants")
def _constants(x: Inputs) -> Any:
    law = scaling.Law("", math.exp(x["log_E"]), math.exp(x["log_A"]), math.exp(x["log_B"]), x["alpha"], x["beta"], "")
    return {**law.constants, "a": law.exponent}


def law(x: Inputs) -> scaling.Law:
    return scaling.Law("", x.get("E", 0.0), x["A"], x["B"], x["alpha"], x["beta"], "")


@kind("scaling.compute_optimal")
def _optimal(x: Inputs) -> Any:
    parameters, tokens = law(x).optimum(x["flops"])
    return {"params": parameters, "tokens": tokens}


@kind("scaling.parametric_loss")
def _loss(x: Inputs) -> Any:
    return [law(x).loss(point["params"], point["tokens"]) for point in x["points"]]


@kind("scaling.exponent")
def _exponent(x: Inputs) -> Any:
    return {"a": scaling.Law("", 0.0, 1.0, 1.0, x["alpha"], x["beta"], "").exponent}


@kind("scaling.fit_parametric")
def _fit(x: Inputs) -> Any:
    """The constants that fit a table of runs: the path of a CSV in `data`, or rows under `points`."""
    from limpid.plan.fit import minimum, points_of
    from limpid.plan.runs import points

    if "points" in x:
        found = [(p["params"], p.get("tokens") or p["flops"] / (6 * p["params"]), p["loss"]) for p in x["points"]]
    else:
        path = next((Path(word) for word in str(x["data"]).split() if Path(word).suffix == ".csv"), Path(""))
        if not path.is_file():
            raise ConfigError(
                f"the runs behind this row ({x['data']}) have no licence, so they are not shipped: "
                "put the CSV there to compute it"
            )
        found = points([str(path)])
    kept = sorted(found, key=lambda point: point[2])[: len(found) - x.get("drop_largest_losses", 0)]
    constants, objective = minimum(points_of(*zip(*kept, strict=True)), x.get("huber_delta", 1e-3))
    return dict(zip(("E", "A", "B", "alpha", "beta"), map(float, constants), strict=True)) | {"objective": objective}


@kind("scaling.kaplan_factor")
def _kaplan(x: Inputs) -> Any:
    return scaling.kaplan_factor(x["factor"], x["alpha_n"])


@kind("scaling.tenfold_compute")
def _tenfold(x: Inputs) -> Any:
    return {
        name: {"params": x["factor"] ** x[f"{name}_a"], "tokens": x["factor"] ** (1 - x[f"{name}_a"])}
        for name in ("kaplan", "chinchilla")
    }


@kind("cluster.training_days_8tp")
def _eight(x: Inputs) -> Any:
    def answer(one: Inputs) -> float:
        flops = 8 / 6 * scaling.six_n_d(one["params"], one["tokens"])  # every block runs forward once more
        return cluster.training_seconds(flops, one["gpus"], one["flops_per_gpu"]) / cluster.DAY

    return each(answer, x, "params")


@kind("cluster.pipeline_bubble")
def _bubble(x: Inputs) -> Any:
    return [
        cluster.pipeline_bubble(*row) for row in zip(x["pipeline"], x["microbatches"], x["interleave"], strict=True)
    ]


@kind("cluster.training_days_from_rate")
def _from_rate(x: Inputs) -> Any:
    return x["tokens"] / (x["tokens_per_s_per_gpu"] * x["gpus"]) / cluster.DAY


@kind("cluster.sum_and_implied_mfu")
def _implied(x: Inputs) -> Any:
    """The last of the sizes is the one whose utilisation is asked for."""
    hours = x["gpu_hours"]
    name = next(key for key in x if key.startswith("params_")).removeprefix("params_")
    own = next(value for key, value in hours.items() if key.lower() == name)
    flops = scaling.six_n_d(x[f"params_{name}"], x["tokens"])
    return {"total": sum(hours.values()), f"implied_mfu_{name}": flops / (own * 3600 * x["peak"])}


@kind("cluster.implied_mfu")
def _implied_mfu(x: Inputs) -> Any:
    flops = scaling.six_n_d(x["active_params"], x["tokens"])
    return {"flops": flops, "mfu": flops / (x["gpu_hours"] * 3600 * x["peak"])}


@kind("cluster.tflops_over_peak_percent")
def _over_peak(x: Inputs) -> Any:
    return [100 * rate / x["peak"] for rate in x["tflops"]]


@kind("cluster.sum")
def _sum(x: Inputs) -> Any:
    total = sum(x["a100_hours"])
    return {"total": total, "four_suites": 4 * total, "tokens": x["steps"] * x["tokens_per_step"]}


@kind("cluster.rescaled_days")
def _rescaled(x: Inputs) -> Any:
    return x["days"] * x["chips"] / x["fewer_chips"]


def lora(layers: int, rank: int, matrices: list[list[int]]) -> int:
    """Parameters of adapters: each matrix (d_in, d_out) gets rank (d_in + d_out). Source: Hu et al. 2021, section 4."""
    return layers * sum(rank * (first + second) for first, second in matrices)


@kind("lora.trainable_params")
def _lora(x: Inputs) -> Any:
    return lora(x["n_layers"], x["rank"], x["matrices"])


@kind("lora.trainable_params_list")
def _loras(x: Inputs) -> Any:
    return [_lora(case) for case in x["cases"]]


@kind("lora.count_and_percent")
@kind("lora.count_with_saved_modules")
def _lora_percent(x: Inputs) -> Any:
    """Modules that are saved whole are trained too, as copies beside the frozen ones."""
    trainable = _lora(x) + x.get("saved_modules", 0)
    everything = x["base"] + trainable
    return {"trainable": trainable, "all": everything, "percent": 100 * trainable / everything}


@kind("lora.mlp_with_saved_head")
def _lora_head(x: Inputs) -> Any:
    head = x["head"][0] * x["head"][1] + x["head"][1]
    trainable = lora(1, x["rank"], x["layers"]) + head
    return {"trainable": trainable, "all": x["base"] + trainable}


@kind("bpe.train")
def _bpe(x: Inputs) -> Any:
    from limpid.data.tokenizer import merges

    return [[first + second, times] for first, second, times in merges(x["words"], x["merges"])]
