"""Processes along the axes of a mesh agree with one, and faults that distributed training had elsewhere are found."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed.fsdp  # here, once: each forked process would import them anew
import torch.distributed.tensor.parallel
import torch.multiprocessing as multiprocessing
from tests.comparison.compared import a_folder
from torch import nn

from limpid.comparison import processes
from limpid.comparison.observed import Observed
from limpid.comparison.run import run
from limpid.comparison.variant import Variant, batch_for, parse_variant
from limpid.comparison.verdict import Comparison, judge
from limpid.errors import ConfigError
from limpid.maths.rounding import FORMATS
from limpid.model.spread import own_part
from limpid.training.mesh import Mesh, open_mesh
from limpid.training.parallel import sharding
from limpid.training.parallel import tensor as tensor_parallel

WORLD = 4
HEADS = {"num_heads": 4, "num_kv_heads": 4, "d_head": 4}


def summed_over_everyone(gradients: list[torch.Tensor]) -> float:
    """Σ g² of what each process holds, added up over all of them, whoever holds the same."""
    squares = sum((own_part(gradient).double().square().sum() for gradient in gradients), torch.zeros(()).double())
    dist.all_reduce(squares)
    return float(squares.sqrt())


def norm_of_everyone(patch: pytest.MonkeyPatch) -> None:
    """The gradient norm counts what several processes hold as often as they are."""

    def clip(model: nn.Module, *_: object) -> float:
        return summed_over_everyone([one.grad for one in model.parameters() if one.grad is not None])

    patch.setattr(processes, "clip", clip)


def gradients_divided(patch: pytest.MonkeyPatch) -> None:
    """PyTorch's mean over processes, of losses that are shares of a sum already."""
    from torch.distributed.fsdp import FSDPModule

    patch.setattr(FSDPModule, "set_gradient_divide_factor", lambda self, factor: None)


def gradients_of_a_copy(patch: pytest.MonkeyPatch) -> None:
    """Copies of the model that never add their gradients up."""

    divide = sharding.divide
    patch.setattr(sharding, "divide", lambda model, ranks, parallel: divide(model, ranks["shard"], parallel))


def norms_of_some_positions(patch: pytest.MonkeyPatch) -> None:
    """The gradient of a norm's weight is left at what this process's positions give (Megatron's sequence parallelism
    needs a sum of its own)."""

    def settle(model: nn.Module) -> None:
        from torch.distributed.tensor import DTensor

        for one in model.parameters():
            if isinstance(one.grad, DTensor) and any(place.is_partial() for place in one.grad.placements):
                one.grad = DTensor.from_local(one.grad.to_local(), one.device_mesh, one.placements, run_check=False)

    patch.setattr(tensor_parallel, "settle", settle)


FAULTS: dict[str, tuple[str, Callable[[pytest.MonkeyPatch], None], str]] = {
    "the norm of each copy, added up": ("replicate=2,shard=2", norm_of_everyone, "grad_norm"),
    "the norm of replicated weights, added up": ("replicate=2,tensor=2", norm_of_everyone, "grad_norm"),
    "gradients divided twice": ("shard=4", gradients_divided, "grad("),
    "copies that do not add up": ("replicate=2,shard=2", gradients_of_a_copy, "grad("),
    "norms of some positions": ("tensor=4", norms_of_some_positions, "grad("),
}
"""The layout, the fault, and where it shows first."""
LAYOUTS = ("shard=4,zero=2", "replicate=2,shard=2", "shard=2,tensor=2", "tensor=4")


def variant_of(folder: Path, text: str) -> Variant:
    return parse_variant(f"{folder}:{text}")


def _process(rank: int, folder: Path, place: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{place}/rendezvous", rank=rank, world_size=WORLD)
    plain = variant_of(folder, "plain")
    tokens, targets = (torch.from_numpy(array) for array in batch_for((plain, plain), None))

    def observe(mesh: Mesh, text: str, file: str) -> None:
        variant = variant_of(folder, text)
        processes.observe(mesh.laid_out(text), variant, tokens, targets, True, place / file)

    with open_mesh() as mesh:
        for text in LAYOUTS:
            observe(mesh, text, text)
        for name, (text, fault, _) in FAULTS.items():
            with pytest.MonkeyPatch.context() as patch:
                fault(patch)
                observe(mesh, text, name)
        mesh.wait()
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Comparison]:
    """What four processes found, with and without faults, held against one process."""
    place = tmp_path_factory.mktemp("processes")
    folder = a_folder(place / "model", "llama", **HEADS)
    multiprocessing.start_processes(_process, (folder, place), nprocs=WORLD, start_method="fork")
    plain = variant_of(folder, "plain")
    tokens, targets = batch_for((plain, plain), None)
    alone = run(plain, tokens, targets, backward=True)

    def judged(file: str) -> Comparison:
        form = FORMATS["fp32"]
        seen = Observed(file, file, alone.parameters, tokens, targets, compute=form, kept=form, summed=form)
        processes.take_down(seen, place / file)
        return judge(plain.config, alone, seen)

    return judged


@pytest.mark.parametrize("text", LAYOUTS)
def test_processes_agree_with_one_up_to_rounding(judged: Callable[[str], Comparison], text: str) -> None:
    comparison = judged(text)
    assert comparison.agrees, comparison.first_disagreement
    named = {one.title for one in comparison.differences}
    assert {"logits", "loss", "grad_norm"} <= named
    assert len(comparison.differences) == 3 + len(comparison.first.parameters)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found_where_it_begins(judged: Callable[[str], Comparison], fault: str) -> None:
    where = judged(fault).first_disagreement
    assert where is not None
    assert where.title.startswith(FAULTS[fault][2]), where.title
    assert where.worst > 10


def test_words_that_name_no_layout_are_refused(tmp_path: Path) -> None:
    folder = a_folder(tmp_path / "model", "llama", **HEADS)
    for words, message in (
        ("shard=2,tensor=3", "choose a divisor"),
        ("processes=3,tensor=2", "multiply to 3"),
        ("processes=8", "take 2 to 4"),
        ("processes=none", "no number of processes"),
    ):
        with pytest.raises(ConfigError, match=message):
            parse_variant(f"{folder}:{words}")
    assert dataclasses.asdict(variant_of(folder, "processes=4,tensor=2").parallel)["shard"] == 2
