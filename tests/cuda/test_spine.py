"""The spine on a graphics processor: train, resume to the bit, open within bounds, decode, evaluate, diagnose, tune."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

import limpid
from limpid.model.kernels import triton_cross_entropy
from limpid.quantities import NO_LABEL
from limpid.run import Run

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
]
PRECISIONS = ("fp32", "bf16", "fp16")
TEXT = "the small river stone hears a bird that finds some green tree. " * 400


def config(data: Path, precision: str, **run: Any) -> dict[str, Any]:
    sizes = {"d_model": 48, "num_layers": 2, "num_heads": 3, "context_length": 32}
    return {
        "data": {"paths": [str(data)], "tokenizer": "bytes"},
        "model": sizes,
        "update": {"warmup_steps": 0, "learning_rate": 3e-3, "schedule": "constant"},
        "run": {"max_steps": 6, "batch_size": 4, "eval_steps": 3, "save_steps": 3, "save_total_limit": 0,
                "precision": precision, **run},
    }  # fmt: skip


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A text, in a folder where runs may lie."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "text.txt"
    file.write_text(TEXT)
    return file


def weights(run: Run, step: int) -> dict[str, torch.Tensor]:
    return load_file(run.checkpoint(step) / "model.safetensors")


@pytest.mark.parametrize("precision", PRECISIONS)
def test_it_trains_there_and_resumes_to_the_bit(data: Path, precision: str) -> None:
    whole = limpid.train(config(data, precision), "whole")
    assert json.loads((whole.checkpoint(6) / "state.json").read_text())["processor"] == torch.cuda.get_device_name()
    losses = [line["loss"] for line in whole.read_metrics().steps]
    assert losses[-1] < losses[0]
    half = limpid.train(config(data, precision, max_steps=3), "half")
    limpid.resume(half, 6)
    for name, tensor in weights(whole, 6).items():
        assert torch.equal(tensor, weights(half, 6)[name]), name


@pytest.mark.usefixtures("unchecked")  # the compiler does not trace the checker
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("compiled", ["off", "on"])
def test_its_step_lies_within_bounds(data: Path, precision: str, compiled: str) -> None:
    run = limpid.train(config(data, precision, compile=compiled), "run")
    verdict = limpid.trace(run, step=5).step.verdict
    assert verdict.agrees, verdict


def test_several_ways_to_its_logits_agree(data: Path) -> None:
    limpid.train(config(data, "fp32"), "run")
    for other in ("run:fast", "run:compiled", "run:cached", "run:sampler"):
        assert limpid.compare("run", other).agrees, other


def test_it_answers_is_judged_and_watched(data: Path) -> None:
    run = limpid.train(config(data, "bf16", doctor=True, sample_steps=3), "run")
    assert limpid.generate(run, "the small", max_new_tokens=8).completions[0].text
    assert limpid.evaluate(run).metric("loss").value < 6
    assert len(run.read_samples()) == 2


@pytest.mark.parametrize("objective", ["sft", "dpo", "grpo"])
def test_it_is_tuned_there(data: Path, objective: str) -> None:
    limpid.train(config(data, "bf16"), "base")
    rows = {
        "sft": {"prompt": "1+1=", "completion": "2"},
        "dpo": {"prompt": "1+1=", "chosen": "2", "rejected": "3"},
        "grpo": {"prompt": "1+1="},
    }
    Path("rows.jsonl").write_text((json.dumps(rows[objective]) + "\n") * 40)
    Path("rewards.py").write_text("def length(completions):\n    return [float(len(one)) for one in completions]\n")
    tune: dict[str, Any] = {"rollouts": {"reward": ["rewards.py:length"], "num_generations": 2},
                            "options": {"max_completion_length": 4}} if objective == "grpo" else {}  # fmt: skip
    run = limpid.tune(
        objective, "base", "rows.jsonl", {"run": {"max_steps": 3, "batch_size": 2}, "tune": tune}, "tuned"
    )
    assert limpid.trace(run, step=2).step.verdict.agrees


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("vocabulary", [37, 5000])
def test_the_loss_of_rows_of_logits_in_one_kernel(dtype: torch.dtype, vocabulary: int) -> None:
    torch.manual_seed(0)
    logits = (3 * torch.randn(64, vocabulary, device="cuda")).to(dtype)
    targets = torch.randint(vocabulary, (64,), device="cuda")
    targets[5], targets[6], targets[7] = NO_LABEL, 0, vocabulary - 1
    exact = logits.double().requires_grad_()
    wanted = F.cross_entropy(exact, targets, ignore_index=NO_LABEL, reduction="none")
    (0.25 * wanted.sum()).backward()
    losses = triton_cross_entropy.row_losses(logits, targets, 0.25)
    torch.testing.assert_close(losses.double(), wanted.detach(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(logits.double(), exact.grad, rtol=torch.finfo(dtype).eps, atol=1e-7)
