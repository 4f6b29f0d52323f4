"""An engine that computes what it says agrees, in every format: no false alarm."""

import itertools
import json
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
import recorded
from recorded import VARIANTS, configuration, record
from rich.console import Console

from limpid.errors import CheckpointError, ConfigError
from limpid.quantities import quantities
from limpid.tracing import Trace, show_step, verify_step
from limpid.tracing.describe import document
from limpid.tracing.schema import to_json

PRECISIONS = ("fp64", "fp32", "bf16", "fp16")


@pytest.mark.parametrize(("variant", "precision"), list(itertools.product(VARIANTS, PRECISIONS)))
def test_everything_agrees(variant: str, precision: str, tmp_path: Path) -> None:
    step = verify_step(record(tmp_path, configuration(variant, precision)))
    wrong = [(check.name, check.kind, check.worst) for check in step.checks() if not check.holds]
    assert wrong == []
    compared = {check.name for check in step.checks() if check.kind == "backward"}
    assert {name for name in step.record.names if name.startswith("fast/grad(")} <= {
        f"fast/grad({n})" for n in compared
    }


@pytest.mark.parametrize("accumulation", [1, 2])
def test_rows_need_not_be_named(accumulation: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nameless(config, number):
        uneven = [4, 1][: config.run.gradient_accumulation_steps]
        return [
            replace(micro, arrays={name: array[:rows] for name, array in micro.arrays.items()}, rows=())
            for rows, micro in zip(uneven, own(config, number), strict=True)
        ]

    own = recorded.batch
    monkeypatch.setattr(recorded, "batch", nameless)
    path = record(tmp_path, configuration("llama", "bf16", accumulation))
    assert Trace.open(path, on_disk=False).step.verdict.agrees
    assert printed(path)[1] == 0


@pytest.mark.parametrize(
    ("variant", "precision"), list(itertools.product(["llama", "gpt-2", "dropout"], ["fp32", "bf16"]))
)
def test_micro_batches_with_uneven_labels_agree(variant: str, precision: str, tmp_path: Path) -> None:
    step = verify_step(record(tmp_path, configuration(variant, precision, accumulation=3)))
    wrong = [(check.name, check.kind, check.worst) for check in step.checks() if not check.holds]
    assert wrong == []
    parts = [float(micro["loss"]) for micro in step.loss.micro_batches]
    assert sum(parts) == pytest.approx(step.loss.loss, rel=1e-6)


@pytest.mark.parametrize(
    ("rule", "precision"), list(itertools.product(["sgd", "momentum", "adam", "muon"], ["fp32", "bf16"]))
)
def test_every_update_rule_agrees(rule: str, precision: str, tmp_path: Path) -> None:
    step = verify_step(record(tmp_path, configuration("llama", precision, rule=rule)))
    assert step.first_disagreement() is None


def test_the_first_step_agrees(tmp_path: Path) -> None:
    assert verify_step(record(tmp_path, configuration("llama", "bf16"), before=0)).first_disagreement() is None


def printed(path: Path, **options) -> tuple[str, int]:
    out = StringIO()
    code = show_step(path, console=Console(file=out, width=200), **options)
    return out.getvalue(), code


def test_the_story_names_every_stage_and_ends_with_the_verdict(tmp_path: Path) -> None:
    text, code = printed(record(tmp_path, configuration("llama", "bf16")), everything=True)
    assert code == 0
    for stage in ("embedding", "block 0 attention", "block 1 mlp", "logits", "the loss", "backward", "update", "AdamW"):
        assert stage in text
    assert any(line.startswith("agrees") for line in text.rstrip().splitlines()[-3:])  # and what 1.00 means in bf16
    count = len(quantities(configuration("llama", "bf16").model))
    assert f"{count} of {count} quantities" in text


def test_the_document_is_json_with_a_version(tmp_path: Path) -> None:
    path = record(tmp_path, configuration("gpt-2", "bf16"))
    text, code = printed(path, as_json=True)
    found = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert code == 0
    assert found["version"] == 4
    assert found == json.loads(json.dumps(to_json(document(verify_step(path)))))
    assert found["verdict"]["agrees"] is True
    assert found["quantities"][-1]["name"] == "loss"
    assert len(found["loss"]["rows"]) == 4


@pytest.mark.parametrize(
    ("asked", "shown"),
    [
        ("blocks.1.attention.scores", "nats"),
        ("grad(blocks.0.mlp.up)", "made by"),
        ("blocks.0.attention.query.weight", "update of entry"),
        ("m(final_norm.weight)", "final_norm.weight"),
        ("blocks.0.attn.hook_pattern", "blocks.0.attention.weights"),
        ("blocks.0.hook_resid_pre", "embed.tokens"),
        ("model.layers.1.self_attn.q_proj", "blocks.1.attention.query"),
        ("model.layers.1.mlp.down_proj.weight", "blocks.1.mlp.output.weight"),
        ("loss", "loss"),
    ],
)
def test_a_quantity_is_shown_by_any_of_its_names(asked: str, shown: str, tmp_path: Path) -> None:
    path = record(tmp_path, configuration("llama", "fp32"))
    text, code = printed(path, quantity=asked)
    assert code == 0
    assert shown in text
    values = json.loads(printed(path, quantity=asked, as_json=True)[0])
    assert values["shape"] is not None


def test_an_unknown_quantity_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"did you mean blocks\.0\.attention\.scores"):
        printed(record(tmp_path, configuration("llama", "fp32")), quantity="blocks.0.attention.score")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda f: f.unlink(), "no such file"),
        (lambda f: f.write_bytes(f.read_bytes()[:-9]), "cannot open"),
        (lambda f: f.write_bytes(b""), "cannot open"),
        (lambda f: f.write_bytes(b"\x80\x04pickled"), "cannot open"),
    ],
)
def test_a_spoiled_file_is_one_line(spoil, message: str, tmp_path: Path) -> None:
    path = record(tmp_path, configuration("llama", "fp32"))
    spoil(path)
    with pytest.raises(CheckpointError) as caught:
        verify_step(path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_equations_are_those_of_this_model(tmp_path: Path) -> None:
    """No bias where there is none, no window where every earlier position is seen, frequencies as stretched."""
    plain, _ = printed(record(tmp_path, configuration("llama", "fp32"), before=0), everything=True)
    assert "+ b_i" not in plain
    assert "i - n" not in plain
    assert "stretched" not in plain
    text, _ = printed(record(tmp_path, configuration("shared keys in a window", "fp32"), before=0), everything=True)
    assert "i - 3 < j ≤ i" in text
    text, _ = printed(record(tmp_path, configuration("geglu with biases", "fp32"), before=0), everything=True)
    assert "+ b_i" in text
    text, _ = printed(record(tmp_path, configuration("interleaved, stretched", "fp32"), before=0), everything=True)
    assert "stretched by llama3" in text
