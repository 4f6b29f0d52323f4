"""The worked model: its weights as anybody can draw them, its step as PyTorch's autograd has it."""

import json
import random
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from limpid.cli import main
from limpid.maths.step import step
from limpid.model import Transformer
from limpid.quantities import parameters
from limpid.tracing import verify_step
from limpid.tracing.worked import CONFIG, batch, moments, record, weights, worked_step

STEP = worked_step()
BEFORE = weights()
BLOCK = "blocks.0."


def test_it_has_3456_parameters_and_6912_optimizer_values() -> None:
    assert sum(p.size for p in BEFORE.values()) == sum(p.size for p in parameters(CONFIG.model)) == 3456
    assert sum(array.size for array in STEP.moments.values()) == 6912


def test_its_weights_are_python_s_own() -> None:
    assert BEFORE["embed.tokens.weight"][1, 0] == pytest.approx(0.024634, abs=5e-7)
    random.seed(42)
    drawn = [random.gauss(0, 0.1) for _ in range(6 * 16 + 5 * 16 + 16 * 8)]
    assert BEFORE["embed.tokens.weight"].ravel().tolist() == drawn[:96]
    assert BEFORE["embed.positions.weight"].ravel().tolist() == drawn[96:176]
    assert BEFORE[f"{BLOCK}attention.query.weight"][:8].T.ravel().tolist() == drawn[176:]


def test_its_configuration_is_one_that_the_mathematics_and_the_engine_understand() -> None:
    taken = step(BEFORE, moments(), batch(), CONFIG, 1)
    model = Transformer(CONFIG.model, torch.float64).double()
    model.load_state_dict({name: torch.tensor(weight) for name, weight in BEFORE.items()})
    logits = model(torch.tensor(batch()["tokens"]))
    assert np.abs(logits.detach().numpy() - taken.chain.values["logits"]).max() <= 1e-14
    assert {name for name, _ in model.named_parameters()} == set(BEFORE)


def test_loss_gradients_and_update_equal_autograd() -> None:
    p = {name: torch.tensor(array, requires_grad=True) for name, array in BEFORE.items()}
    tokens, targets = torch.tensor([1, 3, 4, 5]), torch.tensor([3, 4, 5, 2])
    x = p["embed.tokens.weight"][tokens] + p["embed.positions.weight"][:4]
    heads = []
    for head in range(2):
        q, k, v = (
            x @ p[f"{BLOCK}attention.{name}.weight"][8 * head : 8 * head + 8].T for name in ("query", "key", "value")
        )
        scores = (q @ k.T / 8**0.5).masked_fill(torch.ones(4, 4, dtype=torch.bool).triu(1), -torch.inf)
        heads.append(scores.softmax(-1) @ v)
    x = torch.cat(heads, -1) @ p[f"{BLOCK}attention.output.weight"].T
    hidden = F.gelu(F.linear(x, p[f"{BLOCK}mlp.up.weight"], p[f"{BLOCK}mlp.up.bias"]), approximate="tanh")
    x = x + F.linear(hidden, p[f"{BLOCK}mlp.output.weight"], p[f"{BLOCK}mlp.output.bias"])
    logits = F.layer_norm(x, (16,), p[f"{BLOCK}norm2.weight"], p[f"{BLOCK}norm2.bias"]) @ p["logits.weight"].T
    loss = F.cross_entropy(logits, targets)
    loss.backward()
    assert STEP.loss == pytest.approx(loss.item(), rel=1e-14)
    for name, parameter in p.items():
        assert np.abs(STEP.gradients[name] - parameter.grad.numpy()).max() <= 1e-12

    matrices, vectors = ([q for q in p.values() if (q.ndim >= 2) is wide] for wide in (True, False))
    groups = [{"params": matrices, "weight_decay": 0.01}, {"params": vectors, "weight_decay": 0.0}]
    torch.optim.AdamW(groups, lr=0.001).step()
    for name, parameter in p.items():
        assert np.abs(STEP.parameters[name] - parameter.detach().numpy()).max() <= 1e-12


def test_it_is_told_from_the_tokens_to_the_update(capsys) -> None:
    assert main(["trace", "--worked"]) == 0
    text = capsys.readouterr().out
    assert "3,456 parameters, 6,912 optimizer values" in text
    assert "<BOS> I like transformers → I like transformers <EOS>" in text
    places = [
        text.index(word) for word in ("embed.tokens", "attention.scores", "mlp.hidden", "loss =", "backward", "update")
    ]
    assert places == sorted(places)


def test_it_says_what_the_loss_and_one_weight_s_update_are_made_of(capsys) -> None:
    main(["trace", "--worked"])
    text = capsys.readouterr().out
    nats = [-float(STEP.chain.values["log_probabilities"][0, t, target]) for t, target in enumerate((3, 4, 5, 2))]
    assert all(f"{value:.6g}" in text for value in nats)
    assert f"= {STEP.parameters['embed.tokens.weight'][1, 0]:.8g}\n" in text


def test_its_document_and_its_arrays_hold_every_number(capsys) -> None:
    assert main(["trace", "--worked", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["loss"]["value"] == STEP.loss
    assert document["verdict"]["agrees"]
    assert main(["trace", "--worked", "--json", "--quantity", "grad(logits.weight)"]) == 0
    values = json.loads(capsys.readouterr().out)["values"]
    assert np.array_equal(values, STEP.gradients["logits.weight"])


def test_it_is_recorded_as_any_other_step(tmp_path) -> None:
    report = verify_step(record(tmp_path / "worked.safetensors"))
    assert report.agrees
    assert [quantity.name for quantity in report.quantities] == [link.name for link in STEP.chain.links]


def test_it_runs_without_torch() -> None:
    code = "import sys; from limpid.cli import main; main(['trace', '--worked']); assert 'torch' not in sys.modules"
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    assert time.monotonic() - began < 20  # it takes well under a second; a loaded machine may be slow
