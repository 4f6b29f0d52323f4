"""What a step did so far, call by call: only what the account of the error needs is kept."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.hooks import RemovableHandle

import limpid.adjoints
from limpid.adjoints.watch import Watch
from limpid.operations.arrays import Unreadable, raw
from limpid.operations.call import Call
from limpid.operations.compiled import Regions
from limpid.operations.gradients.projection import Along, Projected, found_in, wanted
from limpid.operations.gradients.reverse import reverse
from limpid.operations.gradients.tape import Tape
from limpid.operations.kept import Keeper
from limpid.operations.module_path import ModulePath
from limpid.operations.report import Facts, Report
from limpid.operations.unrounded import Unrounded
from limpid.operations.weighed import Slice, Weighed, slice_of
from limpid.operations.widened import gradient_in_float64, in_float64

if TYPE_CHECKING:
    from limpid.operations.what_if import WhatIf

PASSED = (os.path.dirname(torch.__file__), os.path.dirname(__file__), os.path.dirname(limpid.adjoints.__file__), "<")
"""Where frames are nobody's own code."""
STEP = os.path.join(os.path.dirname(__file__), "step.py")
"""Whoever calls what takes a step there is not who asked for an operation."""
WHOLE = "CopySlices"
NO_NODE = 1 << 62
"""Nodes of leaves have no number of their own, but the largest."""


class Recording:
    """What a step did so far; `verify` says what came of it."""

    def __init__(
        self,
        model: nn.Module,
        keeper: Keeper | None = None,
        errors_of: Sequence[str] | Mapping[str, Along | None] = (),
    ) -> None:
        self.model, self.keeper = model, keeper
        self.facts = Facts(type(model).__name__, parameters=sum(one.numel() for one in model.parameters()))
        self.calls: list[Call] = []
        self.phase = "forward"
        self.path = ModulePath(model)
        self.of_node: dict[int, Call] = {}
        self.nodes: set[int] = set()
        self.hooks: list[RemovableHandle] = []
        self.slices: dict[int, Slice] = {}  # by the number of the node of what wrote there
        self.unrounded = Unrounded(model)
        self.custom = Watch(model, lambda: (self.path.innermost, _source()))
        self.regions = Regions(model, self.path, self.custom, _source)
        self.state = torch.get_rng_state()
        self.began: float | None = None
        along = errors_of if isinstance(errors_of, Mapping) else dict.fromkeys(errors_of)
        self.asked = [wanted(of, model, direction) for of, direction in along.items()]
        self.projected: dict[str, Projected] = {}
        self.exact: dict[str, float] = {}
        self.tape = Tape() if self.asked else None

    def verify(self, surrogates: Collection[type] = ()) -> Report:
        """Verdicts and the account of the error, of all operations so far.

        surrogates  custom Functions whose backward passes are meant to be another gradient
        """
        adjoints = [one.declared(surrogates) for one in self.custom.found]
        regions = list(self.regions.found.values())
        return Report(self.calls, self.facts, self.began, adjoints, self.projected, self.exact, regions)

    def finish(self) -> None:
        """Make the folder a recording: what it holds is said in it."""
        if self.keeper is not None:
            self.keeper.finish(self.verify().document(), self.facts.again)

    def in_float64(self, function: Callable[[], Tensor], of: str = "loss") -> float:
        """What the loss is without rounding: the same function in float64, weights and random masks as they were.

        of  one of `errors_of`: that number of the gradient in the place of the loss, behind the backward pass

        Call it before the optimizer changes the weights, inside or behind the recording. Nothing of it is recorded.
        """
        if of == "loss":
            with _disable_current_modes():
                self.exact[of] = in_float64(self.model, function, self.state)
                return self.exact[of]
        self.project()
        directions = found_in(self.projected, of).directions
        with _disable_current_modes():
            self.exact[of] = gradient_in_float64(self.model, function, self.state, directions)
            return self.exact[of]

    def project(self) -> None:
        """Go back over the step, once, to what moved the numbers of the gradient that were asked for."""
        if self.tape is not None:
            self.projected = {one.of: one for one in reverse(self.tape, self.asked)}
            self.tape.end()
            self.tape = None

    def what_if(self, function: Callable[[], Tensor], formats: Mapping[str, str]) -> WhatIf:
        """What the loss would be with some operations in another format: foretold and tried; and each module by itself.

        formats  by patterns of modules' paths: {"layers.3.*": "fp8", "lm_head": "bfloat16", "*:_softmax": "float16"}

        Call it as `in_float64` is called: before the weights change. Gradients stay as they are.

        Raises  ConfigError
        """
        from limpid.operations.what_if import what_if

        with _disable_current_modes(), torch._C.DisableTorchFunction():
            return what_if(self.model, function, self.state, formats)

    def begins(self, root: Any) -> None:
        """A backward pass begins at a number: of several, such as micro-batches, they add up."""
        if isinstance(root, Tensor) and root.numel() == 1 and not root.is_complex():
            with _disable_current_modes():
                self.began = float(root.detach()) + (self.began or 0.0)
                if self.tape is not None:
                    self.tape.roots.append((root.detach(), len(self.tape.entries)))

    def begin(self, operation: Any, node: Any) -> Call:
        """A call, where it stands."""
        forward = None if node is None else self.of_node.get(node._sequence_nr())
        phase = "backward" if node is not None else self.phase
        module = forward.module if forward is not None else self.path.innermost
        source = forward.source if forward is not None else _source()
        return Call(len(self.calls), str(operation), phase, module, source, [], "", 0)

    def wrote(self, call: Call, number: int, over: Any) -> None:
        """A call that takes part in the gradient: the number of its node, and what it wrote over."""
        self.of_node[number] = call
        if isinstance(over, Tensor) and (part := slice_of(over)) is not None:
            self.slices[number] = part

    def updating(self, *_: Any) -> None:
        """The optimizer begins."""
        self.phase = "update"
        if self.tape is not None and self.tape.has_all(self.asked):
            self.project()
        if self.keeper is not None:
            self.keeper.gradients(self.model)

    def updated(self, *_: Any) -> None:
        """It has ended."""
        self.phase = "forward"

    def follow(self, node: Any) -> None:
        """Ask every new node below for the gradients that come to it."""
        below = [node]
        while below:
            node = below.pop()
            if node is None or (number := node._sequence_nr()) > NO_NODE or number in self.nodes:
                continue
            self.nodes.add(number)
            self.custom.meet(node)
            # What writes to a view is a node of the whole tensor, made right behind the call's own.
            is_whole = type(node).__name__ == WHOLE
            own = number - 1 if is_whole else number
            if own in self.of_node:
                part = self.slices.get(own) if is_whole else None
                self.hooks.append(node.register_prehook(Weighed(self.of_node[own], part)))
            below += [one for one, _ in node.next_functions]

    def end(self) -> None:
        """Ask for no gradient any more, and keep no differences."""
        for hook in self.hooks:
            hook.remove()
        self.hooks.clear()
        for call in self.calls:
            call.errors, call.enters = (), None
        if self.tape is not None:
            self.tape.end()
        self.facts.not_finite = self.facts.not_finite or _not_finite(self.model)
        if self.keeper is not None:
            self.keeper.end(self.model)


def _source() -> str:
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(PASSED):
        if frame.f_back is None or frame.f_code.co_filename == STEP:
            return ""
        frame = frame.f_back
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"


def _not_finite(model: nn.Module) -> str:
    """The first gradient or parameter that is not finite; nothing where all are, or cannot be read."""
    for name, parameter in model.named_parameters():
        for said, one in ((f"grad({name})", parameter.grad), (name, parameter)):
            with suppress(Unreadable), _disable_current_modes():
                if one is not None and one.is_floating_point() and not np.isfinite(raw(one).astype(np.float32)).all():
                    return said
    return ""
