"""Linear maps of which some rows or columns have a gradient of exactly 0: units that a step does not teach."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from limpid.doctor.devices import together
from limpid.doctor.model_info import ModelInfo, kept_by, weight_of
from limpid.doctor.weights import local


class IdleUnits(NamedTuple):
    """One matrix, some of whose units had no gradient at one step."""

    name: str
    side: str  # outputs, inputs
    idle: Tensor  # (unit,) whether every element of its row (column) has gradient 0


def linear_maps(info: ModelInfo) -> dict[str, tuple[nn.Parameter, bool]]:
    """Weights in blocks of modules that map linearly, and whether they lie (input, output), as in GPT-2's Conv1D.

    Tables are left out, whose rows wait for their tokens, and so is all outside of the blocks: a head may know words
    that nobody says, a first layer see features that are always 0.
    """
    found: dict[str, tuple[nn.Parameter, bool]] = {}
    for block, owner in info.blocks:
        for name, module in owner.named_modules():
            weight = weight_of(module)
            turned = type(module).__name__ == "Conv1D"
            if not isinstance(weight, nn.Parameter) or weight.ndim != 2 or weight is not kept_by(module, "weight"):
                continue
            if isinstance(module, nn.Linear) or turned:
                found[f"{block}.{name}.weight" if name else f"{block}.weight"] = weight, turned
    return found


def idle_units(maps: dict[str, tuple[nn.Parameter, bool]]) -> list[IdleUnits]:
    """Those with idle units; a matrix without any gradient is another matter, and so is a unit whose weights are 0."""
    looked_at: list[tuple[str, nn.Parameter, bool, int, Tensor]] = []  # name, weights, turned, axis, gradient by unit
    for name, (weight, turned) in maps.items():
        if weight.grad is None or weight.grad.is_sparse or not weight.requires_grad:
            continue
        if weight.grad.dtype == torch.float16:  # where small numbers are 0
            continue
        gradient = local(weight.grad)
        looked_at += [(name, weight, turned, 1, gradient), (name, weight, turned, 0, gradient.T)]
    found = []
    masks = together([_first_look(gradient) for *_, gradient in looked_at])
    for (name, weight, turned, axis, gradient), mask in zip(looked_at, masks, strict=True):
        idle = _idle(gradient, mask)
        if not bool(idle.any()) or bool(idle.all()):
            continue
        idle &= local(weight.detach()).any(axis).cpu()  # a unit that was taken out has no weights either
        side = "outputs" if (axis == 1) != turned else "inputs"
        found.append(IdleUnits(name, side, idle))
    return found


def _first_look(gradient: Tensor) -> Tensor:
    """Whether eight elements of each row are 0, which they are in hardly any row but those that are 0."""
    return ~gradient[:, :: max(1, gradient.shape[1] // 8)].bool().any(1)


def _idle(gradient: Tensor, mask: Tensor) -> Tensor:
    """Whether each row is 0, by all elements of those that may be; on the host."""
    left = mask.nonzero().flatten()
    if len(left):
        mask[left] = ~gradient[left.to(gradient.device)].bool().any(1).cpu()
    return mask


def longest_run(idle: Tensor) -> tuple[int, int]:
    """Where the longest run of idle units begins, and how long it is."""
    borders = torch.diff(idle.int(), prepend=idle.new_zeros(1).int(), append=idle.new_zeros(1).int())
    begins, ends = (borders == 1).nonzero().flatten(), (borders == -1).nonzero().flatten()
    if not len(begins):
        return 0, 0
    longest = int((ends - begins).argmax())
    return int(begins[longest]), int(ends[longest] - begins[longest])
