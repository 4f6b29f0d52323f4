"""Rounding or bug: correct variants agree, every fault is found, placed and named."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from recorded import SMALL, VARIANTS
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

import small
from limpid.cli import main
from limpid.compare.hypotheses import FaultyChain, hypotheses
from limpid.compare.observed import Observed
from limpid.compare.run import run
from limpid.compare.variant import Variant, batch_for, parse_variant
from limpid.compare.verdict import judge
from limpid.config import ModelConfig
from limpid.maths.rounding import FORMATS
from limpid.maths.step import forward
from limpid.model import Transformer, initialise
from limpid.model.convert import save_folder
from limpid.source import ModelFolder
from limpid.trace.verdict import Holds, NotFinite, Unchecked
from limpid.training.loop import finish, loop
from limpid.training.start import start

LLAMA = {
    "vocab_size": 61, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 6,
    "num_key_value_heads": 2, "max_position_embeddings": 32, "initializer_range": 0.2,
}  # fmt: skip
PUBLISHED = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**LLAMA)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**LLAMA, head_dim=8)),
    "gpt-2": lambda: GPT2LMHeadModel(
        GPT2Config(vocab_size=61, n_positions=32, n_embd=24, n_layer=2, n_head=6, initializer_range=0.2)
    ),
}


@pytest.fixture(params=PUBLISHED)
def folder(request, tmp_path: Path) -> Path:
    torch.manual_seed(0)
    PUBLISHED[request.param]().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def compared(first: str, second: str, *, backward: bool = True):
    variants = parse_variant(first), parse_variant(second)
    tokens, targets = batch_for(variants, None)
    observed = [run(one, tokens, targets, backward=backward) for one in variants]
    return judge(variants[0].config, observed[0], observed[1], variants[1].config)


@pytest.mark.parametrize(
    "words",
    ["transformers", "cached", "sampler", "fast", "fp64", "bf16", "fp16", "transformers,bf16", "transformers,fp64"],
)
def test_correct_variants_agree_up_to_rounding(folder: Path, words: str) -> None:
    verdict = compared(str(folder), f"{folder}:{words}")
    assert verdict.agrees, verdict.first_disagreement
    assert len(verdict.differences) >= 2
    assert not verdict.bitwise or words == "fast"


def test_processes_that_share_a_batch_agree_with_one_that_has_it_whole(tmp_path: Path) -> None:
    folder = a_folder(tmp_path / "a", "llama")
    verdict = compared(str(folder), f"{folder}:processes=3")
    assert verdict.agrees, verdict.first_disagreement
    assert len([one for one in verdict.differences if one.kind == "backward"]) == len(verdict.first.parameters)
    assert not verdict.bitwise or any(one.worst > 0 for one in verdict.differences)


def test_the_same_variant_twice_is_identical_to_the_last_bit(folder: Path) -> None:
    verdict = compared(str(folder), str(folder))
    assert verdict.agrees
    assert verdict.bitwise


def test_every_quantity_of_transformers_is_seen_backward_too(folder: Path) -> None:
    verdict = compared(str(folder), f"{folder}:transformers")
    names = {(one.name, one.kind) for one in verdict.differences}
    for name in ("attention.query", "attention.weights", "mlp.hidden", "mlp.output", "residual2"):
        assert (f"blocks.1.{name}", "forward") in names
        assert (f"blocks.1.{name}", "backward") in names
    assert set(verdict.first.parameters) <= {name for name, kind in names if kind == "backward"}


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("rope_parameters", {"rope_type": "default", "rope_theta": 500000.0}, "the rotary base is 500,000, not 10,000"),
        ("hidden_act", "gelu", "the activation is gelu, not silu"),
        ("rms_norm_eps", 1e-3, "the norm's epsilon is 0.001, not 1e-06"),
    ],
)
def test_another_configuration_of_the_same_weights_is_named(key: str, value: object, words: str, tmp_path) -> None:
    torch.manual_seed(0)
    model = PUBLISHED["llama"]()
    for name in ("one", "other"):
        model.save_pretrained(tmp_path / name)
    file = tmp_path / "other" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {key: value}))
    verdict = compared(str(tmp_path / "one"), f"{tmp_path / 'other'}:transformers")
    assert not verdict.agrees
    assert verdict.options
    assert verdict.outlier == 1
    assert words in [explanation.words for explanation in verdict.explanations]


def test_a_runs_folder_that_is_stale_or_missing_is_written_anew(tmp_path: Path, monkeypatch) -> None:
    """As after a kill, a Ctrl-C in older versions, or for an earlier checkpoint: nobody is accused of other weights."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LIMPID_CACHE", str(tmp_path / "cache"))
    training = start(small.config(small.corpus(tmp_path / "corpus"), max_steps=4), "run")
    loop(training, small.quiet(), lambda *_: "")
    assert compared("run", "run:transformers").agrees
    finish(training)
    assert parse_variant("run:transformers").source.path == Path("runs/run/model")
    assert parse_variant("run@3:transformers").source.path != Path("runs/run/model")
    assert compared("run@3", "run@3:transformers").agrees


def a_folder(path: Path, variant: str, **changes: object) -> Path:
    config = dataclasses.replace(ModelConfig(**(SMALL | VARIANTS[variant])), dropout=0.0, **changes)
    model = initialise(Transformer(config), 3)
    save_folder(path, config, model.state_dict(), tokenizer_json=None, end_of_text=None)
    return path


def faulty(one: Variant, fault, tokens: np.ndarray, targets: np.ndarray) -> Observed:
    """What an engine with the fault would show in float32."""
    parameters = {name: tensor.double().numpy() for name, tensor in one.weights.items()}
    chain = FaultyChain({**parameters, "tokens": tokens, "targets": targets}, fault)
    forward(chain, one.config)
    seen = {link.name: chain.values[link.name].astype(np.float32).astype(np.float64) for link in chain.links}
    single = FORMATS["fp32"]
    stored = dict.fromkeys(seen, single)
    return Observed("faulty", "plain, fp32", parameters, tokens, targets, seen, {}, stored, single, single, single)


@pytest.mark.parametrize("variant", ["llama", "gpt-2", "shared keys in a window", "qwen3"])
def test_every_fault_that_changes_the_numbers_is_found_and_named(variant: str, tmp_path: Path) -> None:
    config = dataclasses.replace(ModelConfig(**(SMALL | VARIANTS[variant])), dropout=0.0)
    model = initialise(Transformer(config), 3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or "bias" in name:
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    one = Variant("correct", ModelFolder(tmp_path), config, model.state_dict(), "plain", "fp32")
    tokens, targets = batch_for((one, one), None)
    correct = run(one, tokens, targets, backward=False)
    tried = 0
    for words, fault in hypotheses(config):
        try:
            broken = faulty(one, fault, tokens, targets)
        except ValueError:  # does not fit this model
            continue
        away = max(np.abs(broken.values[n] - correct.values[n]).max() for n in ("logits", "blocks.0.residual1"))
        if away < 1e-3:  # does not bite here: no such operation, or an epsilon among large numbers
            continue
        tried += 1
        verdict = judge(config, correct, broken)
        assert not verdict.agrees, words
        assert verdict.outlier == 1
        assert words in [explanation.words for explanation in verdict.explanations]
    assert tried >= 8


def test_interleaved_pairs_are_their_reordered_export(tmp_path: Path) -> None:
    config = ModelConfig(**(SMALL | {"rotary_layout": "interleaved", "num_kv_heads": 1, "qk_norm": False}))
    model = initialise(Transformer(config), 3)
    save_folder(tmp_path / "half", config, model.state_dict(), tokenizer_json=None, end_of_text=None)
    ours = Variant("ours", ModelFolder(tmp_path), config, model.state_dict(), "plain", "fp32")
    theirs = parse_variant(f"{tmp_path / 'half'}:transformers")
    observed = [run(one, *batch_for((ours, theirs), None), backward=True) for one in (ours, theirs)]
    verdict = judge(config, *observed, theirs.config)
    assert verdict.agrees, verdict.first_disagreement
    assert not verdict.options
    same = dataclasses.replace(ours, config=dataclasses.replace(config, rotary_layout="half"))
    wrong = judge(config, observed[0], run(same, observed[0].tokens, observed[0].targets, backward=True), same.config)
    assert not wrong.agrees
    assert any(option.startswith("rotary_layout") for option in wrong.options)
    assert any(explanation.words.startswith("the rotary layout differs") for explanation in wrong.explanations)


def test_a_relu_that_rounding_opens_is_no_bug(tmp_path: Path) -> None:
    changes = VARIANTS["the paper's"] | {"d_model": 48, "d_ff": 96}
    config = ModelConfig(**(SMALL | changes))
    weights = initialise(Transformer(config), 3).state_dict()
    ours = Variant("ours", ModelFolder(tmp_path), config, weights, "plain", "fp32")
    half = dataclasses.replace(ours, label="half", precision="bf16")
    observed = [run(one, *batch_for((ours, half), None), backward=True) for one in (ours, half)]
    assert judge(config, *observed).agrees


def test_different_weights_are_no_rounding(tmp_path: Path) -> None:
    a, b = a_folder(tmp_path / "a", "llama"), a_folder(tmp_path / "b", "llama")
    from safetensors.torch import load_file, save_file

    weights = load_file(b / "model.safetensors")
    weights["model.layers.1.mlp.up_proj.weight"][0, 0] += 1e-2
    save_file(weights, b / "model.safetensors", metadata={"format": "pt"})
    verdict = compared(str(a), str(b))
    assert not verdict.agrees
    assert verdict.weights.differing == ("blocks.1.mlp.up.weight",)
    assert verdict.first_disagreement is not None
    assert verdict.first_disagreement.name == "blocks.1.mlp.up"


def test_a_fault_at_one_position_is_placed(tmp_path: Path) -> None:
    folder = a_folder(tmp_path / "a", "llama")
    one = parse_variant(str(folder))
    tokens, targets = batch_for((one, one), None)
    correct, broken = (run(one, tokens, targets, backward=False) for _ in range(2))
    broken.values["blocks.1.mlp.hidden"] = broken.values["blocks.1.mlp.hidden"].copy()
    broken.values["blocks.1.mlp.hidden"][0, 7:] += 1e-3
    verdict = judge(one.config, correct, broken)
    where = verdict.first_disagreement
    assert where is not None
    assert where.name == "blocks.1.mlp.hidden"
    assert where.positions == tuple(range(7, tokens.shape[1]))
    assert verdict.outlier == 1


def test_in_the_terminal_and_as_json(tmp_path: Path, capsys) -> None:
    folder = a_folder(tmp_path / "a", "llama")
    assert main(["compare", str(folder), f"{folder}:transformers"]) == 0
    assert "identical up to rounding: worst 0." in capsys.readouterr().out
    other = a_folder(tmp_path / "b", "llama", norm_eps=1e-2)
    assert main(["compare", str(folder), f"{other}:transformers", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["explanations"] or document["options"]
    assert document["outlier"].endswith(":transformers")
    assert main(["compare", str(folder), str(other)]) == 1
    text = capsys.readouterr().out
    assert "their configurations differ: norm_eps" in text
    assert "not rounding: blocks.0.norm1" in text


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["compare"], "two variants"),
        (["compare", "a"], "two variants"),
        (["compare", "{a}", "{a}:quick"], "quick"),
        (["compare", "{a}", "{a}:processes=9"], "processes=9"),
        (["compare", "{a}", "nowhere"], "nowhere"),
        (["compare", "{a}", "{wide}"], "d_model"),
        (["compare", "{a}", "{a}", "--text", "x"], "tokenizer.json"),
    ],
)
def test_wrong_use_is_one_line(words: list[str], named: str, tmp_path: Path, capsys) -> None:
    places = {"a": a_folder(tmp_path / "a", "llama"), "wide": a_folder(tmp_path / "wide", "llama", d_model=18)}
    assert main([word.format(**places) for word in words]) == 2
    error = capsys.readouterr().err
    assert named in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("kind", ["llama", "gpt-2"])
@pytest.mark.parametrize("stabilised", [False, True])
def test_an_adapter_beside_the_weights_equals_one_added_in_and_peft(
    kind: str, stabilised: bool, tmp_path: Path
) -> None:
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(0)
    model = PUBLISHED[kind]()
    model.save_pretrained(tmp_path / "base")
    modules = ["q_proj", "v_proj", "down_proj"] if kind == "llama" else ["c_attn", "c_proj"]
    adapted = get_peft_model(model, LoraConfig(r=4, lora_alpha=12, target_modules=modules, use_rslora=stabilised))
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    adapted.save_pretrained(tmp_path / "adapter")
    base = str(tmp_path / "base")
    verdict = compared(f"{base}:lora={tmp_path / 'adapter'}", f"{base}:merged={tmp_path / 'adapter'}")
    assert verdict.agrees, verdict.first_disagreement
    logits = adapted.eval()(torch.from_numpy(verdict.first.tokens)).logits.detach().numpy()
    assert verdict.first.values["logits"] == pytest.approx(logits, abs=2e-5)
    without = compared(base, f"{base}:lora={tmp_path / 'adapter'}")
    assert not without.agrees
    assert without.weights.differing


def test_an_adapter_of_another_model_is_refused(tmp_path: Path, capsys) -> None:
    from safetensors.torch import save_file

    folder = a_folder(tmp_path / "a", "llama")
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text(json.dumps({"r": 2, "lora_alpha": 4}))
    at = "base_model.model.model.layers.9.mlp.up_proj"
    tensors = {f"{at}.lora_A.weight": torch.ones(2, 12), f"{at}.lora_B.weight": torch.ones(17, 2)}
    save_file(tensors, tmp_path / "adapter" / "adapter_model.safetensors")
    assert main(["compare", str(folder), f"{folder}:lora={tmp_path / 'adapter'}"]) == 2
    assert "layers.9.mlp.up_proj" in capsys.readouterr().err
    assert main(["compare", str(folder), f"{folder}:lora={tmp_path / 'none'}"]) == 2
    assert "no adapter" in capsys.readouterr().err


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("both", [False, True])
def test_a_number_that_is_not_finite_is_never_agreement(value: float, both: bool, tmp_path: Path) -> None:
    one = parse_variant(str(a_folder(tmp_path / "a", "llama")))
    tokens, targets = batch_for((one, one), None)
    first, second = (run(one, tokens, targets, backward=True) for _ in range(2))
    for seen in (first, second) if both else (second,):
        for name in ("blocks.1.mlp.hidden", "blocks.1.mlp.output", "logits"):
            seen.values[name] = seen.values[name].copy()
            seen.values[name][0, 7, 3] = value
    comparison = judge(one.config, first, second)
    assert not comparison.agrees
    origin = comparison.verdict
    assert isinstance(origin, NotFinite)
    assert (origin.quantity, origin.index, origin.count) == ("blocks.1.mlp.hidden", (0, 7, 3), 1)
    assert origin.cause == "operation"
    assert str(origin.value) == str(value)
    after = {one.name: one.verdict for one in comparison.differences if one.kind == "forward"}
    assert isinstance(after["logits"], Unchecked)
    assert isinstance(after["blocks.0.mlp.hidden"], Holds)


def test_weights_that_are_not_finite_are_not_checked_or_not_finite(tmp_path: Path) -> None:
    one = parse_variant(str(a_folder(tmp_path / "a", "llama")))
    one.weights["blocks.0.mlp.up.weight"][3, 4] = torch.nan
    tokens, targets = batch_for((one, one), None)
    comparison = judge(one.config, *(run(one, tokens, targets, backward=True) for _ in range(2)))
    assert not comparison.agrees
    assert isinstance(comparison.verdict, NotFinite)
    assert comparison.verdict.quantity == "blocks.0.mlp.up"
    assert comparison.verdict.cause == "no value"


def test_what_overflows_a_format_is_said_to_overflow_it(tmp_path: Path) -> None:
    one = parse_variant(str(a_folder(tmp_path / "a", "llama")))
    one.weights["blocks.0.mlp.up.weight"].mul_(1e6)
    half = dataclasses.replace(one, label="half", precision="fp16")
    tokens, targets = batch_for((one, half), None)
    comparison = judge(one.config, *(run(each, tokens, targets, backward=False) for each in (one, half)))
    assert isinstance(comparison.verdict, NotFinite)
    assert comparison.verdict.cause == "overflow"
    assert comparison.verdict.largest == 65504.0
    assert comparison.outlier == 1


def test_variants_that_show_nothing_in_common_are_not_checked(tmp_path: Path) -> None:
    one = parse_variant(str(a_folder(tmp_path / "a", "llama")))
    tokens, targets = batch_for((one, one), None)
    first, second = (run(one, tokens, targets, backward=False) for _ in range(2))
    second.values.clear()
    comparison = judge(one.config, first, second)
    assert isinstance(comparison.verdict, Unchecked)
    assert not comparison.agrees
