"""Processes that hold stages of the model take the step of one."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint.hf_storage  # here, once: each forked process would import them anew
import torch.distributed.fsdp
import torch.distributed.pipelining
import torch.distributed.tensor.parallel
import torch.multiprocessing as processes
from safetensors.torch import load_file
from tests.training.test_mesh import CONFIG, CPU, batches, with_rule

from limpid.config import ModelConfig, TrainConfig
from limpid.config.parallel import Parallel, typed
from limpid.errors import ConfigError
from limpid.run import Run
from limpid.training import checkpoint
from limpid.training.loop import loop
from limpid.training.mesh import Mesh, open_mesh
from limpid.training.parallel.pipeline import require_stages
from limpid.training.parallel.stage import cut
from limpid.training.start import resume, start
from limpid.training.state import State, fresh_state
from limpid.training.step import step
from limpid.training.update import read_moments
from small import config as small_config
from small import quiet

TIED = {"tied": True, "positions": "learned"}
DROPPED = {"dropout": 0.2, "lora_rank": 2, "use_dora": True, "lora_dropout": 0.1}
TWO = {
    "pipeline=2": DROPPED,
    "pipeline=2,schedule=interleaved1f1b": TIED,
    "pipeline=2,schedule=interleavedzerobubble": TIED,
    "pipeline=2,schedule=zbvzerobubble": {**TIED, "dropout": 0.2},
}
FOUR = {
    "pipeline=4": TIED,
    "pipeline=2,shard=2": TIED,
    "pipeline=2,replicate=2,zero=2,schedule=interleaved1f1b": {},
    "pipeline=2,shard=2,schedule=zbvzerobubble": {},
    "pipeline=2,tensor=2": {**TIED, "context_length": 7, "dropout": 0.2},
    "pipeline=2,tensor=2,schedule=interleaved1f1b": {"lora_rank": 2},
}
"""Layouts, and what the model has that they could get wrong."""
EPS = torch.finfo(torch.float64).eps


def config(rule: str = "adamw", **model: object) -> TrainConfig:
    """Six blocks in float64: what lies within a thousand of its round-offs is the same sum in another order."""
    plain = with_rule(rule)
    return dataclasses.replace(
        plain,
        model=dataclasses.replace(CONFIG.model, **{"num_layers": 6, "tied": False, **model}),
        update=dataclasses.replace(plain.update, max_grad_norm=0.5),
        run=dataclasses.replace(CONFIG.run, precision="fp64"),
    )


def _process(rank: int, work: Callable[..., None], folder: Path, count: int, arguments: tuple) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=count)
    with open_mesh() as mesh:
        work(mesh, *arguments)
    dist.destroy_process_group()


@pytest.fixture
def together(here: Path) -> Callable[..., None]:
    """Runs a function on so many processes in this test's folder."""

    def run(count: int, work: Callable[..., None], *arguments: object) -> None:
        (here / "rendezvous").unlink(missing_ok=True)
        processes.start_processes(_process, (work, here, count, arguments), nprocs=count, start_method="fork")

    return run


def of_one_piece(state: State, config: TrainConfig) -> dict[str, torch.Tensor]:
    """Weights and moments, in the main process."""
    moments = read_moments(state.model, state.optimizer, config.update)
    return state.mesh.gathered(state.model) | state.mesh.put_together(moments)


def steps_are_alike(mesh: Mesh, text: str, model: Mapping[str, object]) -> None:
    asked = config(**model)
    cut, alone = fresh_state(asked, mesh.laid_out(text)), fresh_state(asked, Mesh(CPU))
    for batch in batches(2, asked.model):
        ours, theirs = step(cut, batch, asked), step(alone, batch, asked)
        assert ours.micro_losses == pytest.approx(theirs.micro_losses, rel=1000 * EPS), text
        assert ours.grad_norm == pytest.approx(theirs.grad_norm, rel=1000 * EPS), text
        gradients = {name: one.grad for name, one in cut.model.named_parameters() if one.grad is not None}
        found = cut.mesh.put_together(gradients)
        for name, gradient in found.items():
            other = alone.model.get_parameter(name).grad
            # of factors, terms cancel to a hundredth of their size
            assert (gradient - other).abs().max() <= 10_000 * EPS * other.abs().max(), (text, name)
        trained = {name for name, one in alone.model.named_parameters() if one.requires_grad}
        assert not mesh.is_main or found.keys() == trained


def every_schedule_is_alike(mesh: Mesh, layouts: Mapping[str, Mapping[str, object]]) -> None:
    for text, model in layouts.items():
        steps_are_alike(mesh, text, model)


def every_schedule_of_two(mesh: Mesh) -> None:
    every_schedule_is_alike(mesh, TWO)
    half_precision_is_alike(mesh)


def half_precision_is_alike(mesh: Mesh) -> None:
    """float16: the step of one process to the bit, and an overflow in one stage lowers the scale of all."""
    plain, half = config(num_layers=2), dataclasses.replace(CONFIG.run, precision="fp16")
    asked = dataclasses.replace(plain, run=half, update=with_rule("adamw").update)  # none is clipped by a norm
    cut, alone = fresh_state(asked, mesh.laid_out("pipeline=2")), fresh_state(asked, Mesh(CPU))
    for batch, scale in zip(batches(2), (2.0**10, 2.0**40), strict=True):
        for state in (cut, alone):
            state.scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        ours, theirs = step(cut, batch, asked), step(alone, batch, asked)
        assert ours.micro_losses == theirs.micro_losses
        assert (ours.updated, cut.scaler.get_scale()) == (theirs.updated, alone.scaler.get_scale())
        for name, mine in cut.model.named_parameters():
            assert torch.equal(mine, alone.model.get_parameter(name)), name
    assert not ours.updated
    assert cut.scaler.get_scale() == 2.0**39


def test_two_stages_and_four_take_the_step_of_one_process(together: Callable[..., None]) -> None:
    together(2, every_schedule_of_two)


def test_four_stages_and_stages_that_shard_take_the_step_of_one_process(together: Callable[..., None]) -> None:
    together(4, every_schedule_is_alike, FOUR)


def saved(mesh: Mesh, text: str) -> None:
    asked = config("muon", **TIED)
    state = fresh_state(asked, mesh.laid_out(text))
    for batch in batches(2):
        step(state, batch, asked)
    checkpoint.save(Run(Path("saved")), state, asked, "data")
    resumed = fresh_state(asked, mesh.laid_out("pipeline=2,schedule=interleaved1f1b"))
    checkpoint.load(Run(Path("saved")), 2, resumed, asked)
    before, after = of_one_piece(state, asked), of_one_piece(resumed, asked)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    batch = batches(3)[2]
    assert step(state, batch, asked).loss == pytest.approx(step(resumed, batch, asked).loss, rel=1000 * EPS)


def test_stages_are_saved_in_the_files_of_one_process_and_go_on_in_other_stages_and_in_one(
    together: Callable[..., None],
) -> None:
    for name in ("saved", "alone"):
        Path(name).mkdir()
    together(2, saved, "pipeline=2")
    asked = config("muon", **TIED)
    alone, resumed = fresh_state(asked), fresh_state(asked)
    checkpoint.save(Run(Path("alone")), alone, asked, "data")
    files = [
        {file.name: load_file(file).keys() for file in Run(Path(name)).checkpoint(at).glob("*.safetensors")}
        for name, at in (("saved", 2), ("alone", 0))
    ]
    assert files[0] == files[1]
    checkpoint.load(Run(Path("saved")), 2, resumed, asked)
    for batch in batches(2):
        step(alone, batch, asked)
    for name, ours in alone.model.named_parameters():
        assert torch.allclose(ours, resumed.model.get_parameter(name), rtol=0, atol=1000 * EPS)


def trains(mesh: Mesh, data: Path) -> None:
    asked = small_config(data, batch_size=4, max_steps=6, model={"num_layers": 4}, parallel="pipeline=2")
    loop(start(asked, "stages", quiet(), mesh=mesh), quiet(), lambda model, *_: f"of {len(model.blocks)} blocks")
    loop(resume(Run(Path("runs/stages")), 8, quiet(), mesh, parallel="pipeline=2,schedule=zbvzerobubble"), quiet(), str)


def test_a_run_in_stages_evaluates_samples_and_goes_on_as_that_of_one_process(
    data: Path, together: Callable[..., None]
) -> None:
    together(2, trains, data)
    alone = small_config(data, batch_size=4, max_steps=6, model={"num_layers": 4})
    loop(start(alone, "alone", quiet()), quiet(), lambda *_: "")
    loop(resume(Run(Path("runs/alone")), 8, quiet()), quiet(), lambda *_: "")
    runs = [Run(Path("runs") / name) for name in ("stages", "alone")]
    stages, one = ([json.loads(line) for line in run.metrics_file.open()] for run in runs)
    assert [entry["step"] for entry in stages] == [entry["step"] for entry in one]
    for ours, theirs in zip(stages, one, strict=True):
        for kind in {"loss", "eval_loss", "grad_norm_before_clip"} & theirs.keys():
            assert ours[kind] == pytest.approx(theirs[kind], rel=1e-4), (ours["step"], kind)


@pytest.mark.parametrize(("blocks", "count", "sizes"), [(6, 2, [3, 3]), (7, 4, [2, 2, 2, 1]), (4, 4, [1, 1, 1, 1])])
def test_blocks_are_divided_evenly_and_the_last_stage_has_no_more_than_others(
    blocks: int, count: int, sizes: list[int]
) -> None:
    stages = cut(blocks, count)
    assert [len(one) for one in stages] == sizes
    assert [place for one in stages for place in one] == list(range(blocks))


REFUSED = {
    "pipeline=8": r"takes 8 stages by schedule 1f1b, and num_layers is 4",
    "pipeline=4,schedule=interleaved1f1b": r"takes 8 stages by schedule interleaved1f1b, and num_layers is 4",
    "pipeline=2,shard=2,schedule=zbvzerobubble": r"tied is yes: .* choose interleavedzerobubble",
    "shard=2,schedule=interleaved1f1b": r"schedule is interleaved1f1b, which orders the stages of a pipeline",
}


@pytest.mark.parametrize("text", REFUSED, ids=str)
def test_what_no_pipeline_can_do_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(ConfigError, match=REFUSED[text]):
        require_stages(TrainConfig(ModelConfig(num_layers=4)), Parallel(**typed(text)))
