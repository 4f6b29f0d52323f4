"""Four processes along every pair of axes take the step of one."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint.hf_storage  # here, once: each forked process would import them anew
import torch.distributed.fsdp
import torch.distributed.tensor.parallel
import torch.multiprocessing as processes
from safetensors.torch import load_file, save_file
from tests.training.test_mesh import CONFIG, batches, steps_are_alike, tensors, trained, with_rule

from limpid.config import TrainConfig
from limpid.model.spread import whole
from limpid.run import Run
from limpid.training import checkpoint
from limpid.training.mesh import Mesh, open_mesh
from limpid.training.state import State, fresh_state
from limpid.training.step import step

WORLD = 4
DATA = {
    "shard=4,zero=1": "adamw",
    "replicate=4": "adamw",
    "replicate=2,shard=2,zero=2": "muon",
}
"""Axes along which rows are dealt out, and the rule under which they are tried."""


def _process(rank: int, work: Callable[..., None], folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=WORLD)
    with open_mesh() as mesh:
        work(mesh)
    dist.destroy_process_group()


@pytest.fixture
def together(here: Path) -> Callable[..., None]:
    """Runs a function on four processes in this test's folder."""

    def run(work: Callable[..., None]) -> None:
        (here / "rendezvous").unlink(missing_ok=True)
        processes.start_processes(_process, (work, here), nprocs=WORLD, start_method="fork")

    return run


def places(mesh: Mesh) -> None:
    """Which rows each process takes, and who says what came of them."""
    laid_out = mesh.laid_out("replicate=2,tensor=2")
    assert (laid_out.data_rank, laid_out.data_world, laid_out.stage) == (mesh.rank // 2, 2, 0)
    assert list(laid_out.share(range(5))) == list(range(5))[mesh.rank // 2 :: 2]
    assert laid_out.answers == (mesh.rank in (0, 2))
    assert laid_out.joined([float(item) for item in laid_out.share(range(5))], 5) == (0, 1, 2, 3, 4)
    assert laid_out.axes.mesh_dim_names == ("replicate", "shard", "tensor")
    assert list(laid_out.axes.get_coordinate() or ()) == [mesh.rank // 2, 0, mesh.rank % 2]


def data_layouts_are_alike(mesh: Mesh) -> None:
    places(mesh)
    for text, rule in DATA.items():
        steps_are_alike(mesh.laid_out(text), with_rule(rule))


def test_a_step_of_data_parallel_processes_is_that_of_one(together: Callable[..., None]) -> None:
    together(data_layouts_are_alike)


def with_model(**options: object) -> TrainConfig:
    """In float64: what lies within a thousand of its round-offs is the same sum in another order, and nothing else."""
    model = dataclasses.replace(CONFIG.model, **options)
    run = dataclasses.replace(CONFIG.run, precision="fp64", gradient_checkpointing="on")
    update = dataclasses.replace(CONFIG.update, max_grad_norm=0.3, optimizer="momentum", warmup_steps=1)
    return dataclasses.replace(CONFIG, model=model, run=run, update=update)


GPT2 = {"norm": "layer", "mlp": "plain", "activation": "gelu_tanh", "positions": "learned", "mlp_bias": True}
UNEVEN = {"num_kv_heads": 4, "context_length": 7, "d_ff": 42, "vocab_size": 35}  # nothing but heads divides by 4
TENSOR = (
    ("shard=2,tensor=2", with_model(tied=False, norm_placement="post")),
    ("shard=2,tensor=2", with_model(dropout=0.2, lora_rank=3, use_dora=True, lora_dropout=0.1, attention_bias=True)),
    ("tensor=4", with_model(**GPT2, **UNEVEN, attention_bias=True, attention_output_bias=True)),
)
"""Axes that cut matrices, and models that they cut in another way."""


def tensor_step_is_alike(mesh: Mesh, config: TrainConfig) -> None:
    spread, alone = fresh_state(config, mesh), fresh_state(config, Mesh(torch.device("cpu")))
    assert all(hasattr(parameter, "full_tensor") for parameter in spread.model.parameters())
    tolerance = 1000 * torch.finfo(torch.float64).eps
    for batch in batches(1, config.model):
        ours, theirs = step(spread, batch, config), step(alone, batch, config)
        assert ours.micro_losses == pytest.approx(theirs.micro_losses, rel=tolerance)
        assert ours.grad_norm == pytest.approx(theirs.grad_norm, rel=tolerance)
        assert ours.grad_norm > config.update.max_grad_norm  # clipped
    for (name, parameter), other in zip(spread.model.named_parameters(), alone.model.parameters(), strict=True):
        gap = (whole(parameter.detach()) - other.detach()).abs().max()
        assert gap <= tolerance * other.abs().max(), (str(mesh.parallel), name)


def tensor_layouts_are_alike(mesh: Mesh) -> None:
    for text, config in TENSOR:
        tensor_step_is_alike(mesh.laid_out(text), config)


def test_a_step_of_processes_that_share_matrices_is_that_of_one(together: Callable[..., None]) -> None:
    together(tensor_layouts_are_alike)


SAVED = {"shard=2,tensor=2": "shard=4", "replicate=2,shard=2,zero=1": "replicate=2,tensor=2"}
"""Axes along which a checkpoint is written, and those along which it is read."""


def averaged(config: TrainConfig) -> TrainConfig:
    return dataclasses.replace(config, update=dataclasses.replace(config.update, ema_decay=0.9))


def checkpoints_are_read_along_other_axes(mesh: Mesh) -> None:
    config = averaged(with_rule("muon"))
    for text, other in SAVED.items():
        state, run = trained(config, mesh.laid_out(text)), Run(Path(text))
        checkpoint.save(run, state, config, "data")
        before = everything(state, config)
        if mesh.is_main:
            save_file(before, f"{text}.safetensors")
        resumed = fresh_state(config, mesh.laid_out(other))
        checkpoint.load(run, 2, resumed, config)
        after = everything(resumed, config)
        assert before.keys() == after.keys()
        assert all(torch.equal(before[name], after[name]) for name in before), (text, other)


def everything(state: State, config: TrainConfig) -> dict[str, torch.Tensor]:
    """Weights, moments and averages in one piece."""
    return tensors(state, config) | {f"average/{name}": whole(one).clone() for name, one in state.average.items()}


def test_a_checkpoint_is_resumed_along_other_axes_and_by_one_bit_for_bit(together: Callable[..., None]) -> None:
    for text in SAVED:
        Path(text).mkdir()
    together(checkpoints_are_read_along_other_axes)
    config = averaged(with_rule("muon"))
    for text in SAVED:
        before, resumed = load_file(f"{text}.safetensors"), fresh_state(config)
        checkpoint.load(Run(Path(text)), 2, resumed, config)
        after = everything(resumed, config)
        assert before.keys() == after.keys()
        assert all(torch.equal(before[name], after[name]) for name in before), text
