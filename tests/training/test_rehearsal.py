"""A step of one rank among many, without them: the bytes and messages of the real thing."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.apart import apart
from tests.training.test_layouts import together  # noqa: F401  (four processes)

from limpid.api import plans
from limpid.cli import main
from limpid.config import TuneConfig
from limpid.errors import ConfigError
from limpid.planning.communication import Links
from limpid.planning.engine_memory import total_bytes
from limpid.training.mesh import Mesh
from limpid.training.parallel.held import holding
from limpid.training.parallel.rehearsal import Rehearsal, Sending, _batch, _moments, rehearse
from limpid.training.state import fresh_state
from limpid.training.step import step
from planning.measured import configured, peak_bytes

LAYOUTS = "shard=4", "shard=4,zero=1", "replicate=2,shard=2", "shard=2,tensor=2"
CONFIG = configured(num_layers=2, batch_size=2)


@pytest.mark.parametrize(
    "options",
    [{}, {"precision": "bf16"}, {"precision": "fp16"}, {"precision": "fp64"}, {"gradient_accumulation_steps": 2},
     {"gradient_checkpointing": "on"}, {"optimizer": "muon", "max_grad_norm": None}, {"lora_rank": 4}],
    ids=["fp32", "bf16", "fp16", "fp64", "accumulated", "recomputed", "muon", "factors"],
)  # fmt: skip
@apart
def test_one_rank_holds_what_the_profiler_sees_and_the_plan_says(options: dict[str, object]) -> None:
    config = configured(**options)
    found = rehearse(config, 1, "", config.run.gradient_accumulation_steps)
    unscaled = 0.01 if config.run.precision == "fp16" else 0.002  # a loss scale is a number, and left out
    assert found.peak == pytest.approx(peak_bytes(config), rel=unscaled)
    assert found.peak == pytest.approx(total_bytes(config), rel=0.05)
    assert found.sent == ()


def measures(mesh: Mesh) -> None:
    """What every process really holds and sends in a second step."""
    for text in LAYOUTS:
        state = fresh_state(CONFIG, mesh.laid_out(text))
        batch = _batch(CONFIG, state.mesh.data_world)
        step(state, batch, CONFIG)
        sending = Sending()
        with holding() as memory, sending:
            for one in (*state.model.parameters(), *_moments(state)):
                memory.see(one)
            step(state, batch, CONFIG)
        if mesh.is_main:
            found = {"peak": memory.peak, "sent": [vars(one) for one in sending.sent]}
            Path(f"{text}.json").write_text(json.dumps(found))


@apart
def test_ranks_that_are_not_there_hold_and_send_what_real_ones_do(
    together: Callable[..., None],  # noqa: F811
    here: Path,
) -> None:
    together(measures)
    for text in LAYOUTS:
        real, found = json.loads((here / f"{text}.json").read_text()), rehearse(CONFIG, 4, text)
        assert found.peak == pytest.approx(real["peak"], rel=0.01), text
        kinds = "all-gather", "reduce-scatter"
        own = [vars(one) for one in found.sent if one.kind in kinds]
        assert own == [one for one in real["sent"] if one["kind"] in kinds], text


@apart
def test_many_ranks_divide_what_one_holds() -> None:
    one, many = rehearse(CONFIG, 1), rehearse(CONFIG, 128)
    assert many.held["weights"] == pytest.approx(one.held["weights"] / 128, rel=0.05)  # rows are whole
    gathered, scattered = ({sent.kind: sent for sent in many.sent}[kind] for kind in ("all-gather", "reduce-scatter"))
    blocks = CONFIG.model.num_layers
    assert (gathered.count, scattered.count) == (2 * blocks + 1, blocks + 1)  # what follows the blocks stays gathered
    assert scattered.bytes == pytest.approx(one.held["weights"] * 127 / 128, rel=0.05)


@apart
def test_a_ring_inside_a_node_is_fast() -> None:
    links = Links(inside=100e9, between=1e9, devices_per_node=4)
    inside = rehearse(CONFIG, 8, "replicate=2,shard=4")
    assert {one.span for one in inside.sent if one.kind == "all-gather"} == {4}
    across = rehearse(CONFIG, 8)
    assert inside.seconds(links) < across.seconds(links)
    assert (inside.tokens, rehearse(CONFIG, 8, "tensor=4").tokens) == (8 * 2 * 64, 2 * 2 * 64)


@apart
def test_the_layout_that_fits_and_sends_least_is_chosen(capsys: pytest.CaptureFixture, tmp_path: Path) -> None:
    found = plans.rehearse(CONFIG, 8)
    by_name = {str(one.parallel): one for one in found.tried}
    assert {"shard=8,zero=1", "shard=8", "shard=4,tensor=2"} <= set(by_name)
    assert found.chosen is not None
    fitting = sorted(found.tried, key=lambda one: one.peak)[:2]
    least: Rehearsal = min(fitting, key=lambda one: one.seconds(found.links) / one.tokens)
    assert plans.rehearse(CONFIG, 8, memory=fitting[1].peak / 1e9).chosen.parallel == least.parallel
    config = tmp_path / "m.toml"
    config.write_text("[model]\nvocab_size = 64\nd_model = 24\nnum_layers = 1\nnum_heads = 2\n[run]\nbatch_size = 1\n")
    assert main(["plan", str(config), "--rehearse", "4", "--parallel", "shard=4"]) == 0
    assert "× all-gather among 4" in capsys.readouterr().out
    assert main(["plan", str(config), "--rehearse", "2", "--memory", "0.000001"]) == 1
    assert "none fits" in capsys.readouterr().out


@apart
def test_what_is_rehearsed_as_something_else_is_said() -> None:
    run = dataclasses.replace(CONFIG.run, compile="on")
    found = plans.rehearse(dataclasses.replace(CONFIG, run=run, tune=TuneConfig(objective="dpo")), 1, "")
    compiled, tuned = found.notes
    assert "not compiled" in compiled
    assert "dpo is rehearsed as next-token training" in tuned
    document = json.loads(json.dumps(found.document()))
    assert (document["chosen"], document["notes"][0]) == ("", compiled)


@apart
def test_mistakes_are_one_line(capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(ConfigError, match="does not train llama-3-8b itself"):
        plans.rehearse("llama-3-8b", 8)
    with pytest.raises(ConfigError, match="base_precision is int8, which one process alone can hold"):
        rehearse(configured(lora_rank=4, base_precision="int8"), 4)
    for words, said in (
        (("--rehearse", "8", "--zero", "3"), "of a rehearsal --parallel says how ranks divide the step"),
        (("--rehearse", "8", "--parallel", "tensor=3"), "which takes 3 processes"),
        (("--rehearse", "8", "--parallel", "pipeline=2"), "stages are not rehearsed"),
        (("--parallel", "shard=8"), "does nothing without --rehearse"),
        (("--rehearse", "8", "--why", "memory"), "--why and --rehearse ask for different things"),
        (("--rehearse", "8", "--compute", "1e20"), "--compute and --rehearse ask for different things"),
        (("--rehearse", "8", "--tokens", "1e9"), "tokens is 1000000000.0, which a rehearsal does not use"),
        (("--rehearse", "8", "--device", "here"), "a rehearsal measures nothing"),
        (("--rehearse", "8", "--recompute", "selective"), "limpid recomputes whole blocks"),
    ):
        assert main(["plan", *words]) == 2
        error = capsys.readouterr().err
        assert said in error, error
        assert error.count("\n") == 1
