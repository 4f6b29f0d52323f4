"""How the user's loop calls the model: arguments, token ids among them, what comes back."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from limpid.doctor.parts import Part, tensors_at

IGNORED = -100
ID_NAMES = ("input_ids", "tokens", "idx", "ids", "x", "inputs", "input")
LABEL_NAMES = ("labels", "targets", "target", "y", "label")
MASK_NAMES = ("attention_mask", "mask", "padding_mask")


def is_ids(value: Any) -> bool:
    return is_whole(value) and value.ndim == 2


def is_whole(value: Any) -> bool:
    """Whether a tensor holds whole numbers."""
    return isinstance(value, Tensor) and not value.is_floating_point() and value.dtype != torch.bool


@dataclass
class Call:
    """One call of the model, ready to be made again with other token ids."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    names: tuple[str, ...] = ()
    """What `forward` calls its positional arguments, where that is known."""
    part: nn.Module | None = None
    """What is called, where that is a part of the model."""
    then: tuple[Part, ...] = ()
    """Parts that are called on what it returned, one after another, in the same pass."""
    obstacle: str = ""
    """Why the pass cannot be made again."""

    @classmethod
    def to(cls, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], part: nn.Module | None = None) -> Call:
        """A call that the loop makes of the model, or of a part of it."""
        return cls(args, kwargs, parameters_of(model if part is None else part)[: len(args)], part)

    def mapped(self, change: Callable[[Any], Any]) -> Call:
        """The same call on changed values; what several are given stays one value."""
        known: dict[int, Any] = {}

        def once(value: Any) -> Any:
            if id(value) not in known:
                known[id(value)] = change(value)
            return known[id(value)]

        kwargs = {name: once(value) for name, value in self.kwargs.items()}
        then = tuple(part.mapped(once) for part in self.then)
        return replace(self, args=tuple(map(once, self.args)), kwargs=kwargs, then=then)

    @property
    def ids(self) -> Tensor | None:
        """The token ids (batch, position), if there are any."""
        for name in ID_NAMES:
            if is_ids(self.kwargs.get(name)):
                return self.kwargs[name]
        before: list[int] = []  # rows of whole numbers that come first
        told = {*LABEL_NAMES, *MASK_NAMES}
        for value in [*self.args, *(value for name, value in self.kwargs.items() if name not in told)]:
            if is_ids(value):
                edges = len(value) == 2 and any(rows != 2 for rows in before)  # of a graph: no ids of its nodes
                return None if edges else value
            before += [len(value)] if is_whole(value) and value.ndim else []
        return None

    @property
    def all_ids(self) -> list[Tensor]:
        """All tensors that may be token ids and are not called labels."""
        named = [value for name, value in self.kwargs.items() if name not in LABEL_NAMES]
        return [value for value in [*self.args, *named] if is_ids(value)]

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The tensors that it is given, by the names of `forward`, or by their place where these are not known."""
        named = dict(zip(self.names or map(str, range(len(self.args))), self.args, strict=False)) | self.kwargs
        return {name: one for name, one in named.items() if isinstance(one, Tensor)}

    @property
    def mask(self) -> Tensor | None:
        given = self.tensors
        return next((given[name] for name in MASK_NAMES if name in given), None)

    @property
    def positions(self) -> Tensor | None:
        positions = self.kwargs.get("position_ids")
        return positions if is_ids(positions) else None

    @property
    def labels(self) -> Tensor | None:
        """Labels that the model is given beside its inputs."""
        named = next((self.kwargs[name] for name in LABEL_NAMES if is_ids(self.kwargs.get(name))), None)
        if named is not None or self.names:
            positional = dict(zip(self.names, self.args, strict=False))
            return (
                named
                if named is not None
                else next((positional[name] for name in LABEL_NAMES if is_ids(positional.get(name))), None)
            )
        others = [value for value in self.args if is_ids(value)]
        return others[1] if len(others) > 1 else None

    @property
    def named_labels(self) -> Tensor | None:
        """Labels that the model is given by the name of transformers: it shifts them itself."""
        return self.kwargs["labels"] if is_ids(self.kwargs.get("labels")) else None

    def detached(self) -> Call:
        """The same call holding no graph."""
        return self.mapped(_detached)

    def rows(self, chosen: slice | Tensor, positions: int | None = None, start: int = 0) -> Call:
        """The call for some rows only, and for so many positions of them: what has a batch axis is cut along it.

        States of recurrent layers (layer, row, width) have it in the middle.
        """
        ids = self.ids
        if ids is None:
            return self
        batch, length = ids.shape

        def cut(value: Any) -> Any:
            if isinstance(value, Tensor) and value.ndim and value.shape[0] == batch:
                value = value[chosen]
                if positions is not None:
                    for axis in range(1, value.ndim):
                        if value.shape[axis] == length:
                            value = value.narrow(axis, start, min(positions, length - start))
                return value
            state = isinstance(value, Tensor) and value.ndim == 3 and value.is_floating_point()
            return value[:, chosen] if state and value.shape[1] == batch != value.shape[2] else value

        return self.mapped(cut)

    def with_values(self, change: Callable[[Tensor], Tensor]) -> Call:
        """The same call on other numbers of a sequence or picture each, (row, …, …)."""

        def changed(value: Any) -> Any:
            return (
                change(value) if isinstance(value, Tensor) and value.is_floating_point() and value.ndim > 2 else value
            )

        return self.mapped(changed)

    def with_ids(self, ids: Tensor, instead: Tensor | None = None) -> Call:
        """The same call on other token ids, in the place of these."""
        old = self.ids if instead is None else instead

        def swap(value: Any) -> Any:
            return ids if value is old else value

        return self.mapped(swap)

    def without_loss(self) -> Call:
        """The call without labels by name, where the model takes them as an option."""
        return replace(self, kwargs={k: v for k, v in self.kwargs.items() if k != "labels"})

    def make(self, model: nn.Module) -> Any:
        """Make it once more, of the model or of the parts that the loop called; what comes of the last of these.

        Functions that would be told of it, as of a pass of their own, are left out.
        """
        called = model if self.part is None else self.part
        optional = {one.name for one in _signature(called) if one.default is None}
        told = {name for name, value in self.kwargs.items() if inspect.isroutine(value) and name in optional}
        last = called(*self.args, **{name: value for name, value in self.kwargs.items() if name not in told})
        returned = [last]
        for part in self.then:
            returned.append(part.make(returned))
            last = returned[-1] if part.follows else last
        return last

    @property
    def own_parts(self) -> list[nn.Module]:
        """The parts that it is made of, where the whole is not called."""
        first = [] if self.part is None else [self.part]
        return [*first, *(part.module for part in self.then if part.follows)]

    @property
    def given(self) -> list[Tensor]:
        """All tensors that it is given, and that its parts are given besides what others of them returned."""
        then = [(part.args, part.kwargs) for part in self.then]
        return [
            *(value for value in [*self.args, *self.kwargs.values()] if isinstance(value, Tensor)),
            *(tensor for _, tensor in tensors_at(then, depth=4)),
        ]


def find_logits(output: Any) -> Tensor | None:
    """The logits (…, vocabulary) in what a model returned; one number, such as a score or a value, is none."""
    if isinstance(output, Tensor):
        return output if _is_logits(output) else None
    named = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
    if isinstance(named, Tensor):
        return named if named.shape[-1:] != (1,) else None
    entries = output.values() if isinstance(output, Mapping) else output if isinstance(output, tuple | list) else ()
    return next((entry for entry in entries if isinstance(entry, Tensor) and _is_logits(entry)), None)


def find_rows(output: Any) -> Tensor | None:
    """The first numbers in what a model returned, logits before others."""
    logits = find_logits(output)
    if logits is not None or isinstance(output, Tensor):
        return output if logits is None else logits
    entries = output.values() if isinstance(output, Mapping) else output if isinstance(output, tuple | list) else ()
    return next((one for one in entries if isinstance(one, Tensor) and one.is_floating_point() and one.ndim), None)


def _is_logits(tensor: Tensor) -> bool:
    return tensor.is_floating_point() and tensor.ndim >= 2 and tensor.shape[-1] > 1


def find_loss(output: Any) -> Tensor | None:
    """The loss in what a model returned."""
    named = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if isinstance(named, Tensor) and named.numel() == 1:
        return named
    entries = output if isinstance(output, tuple | list) else ()
    return next((e for e in entries if isinstance(e, Tensor) and e.is_floating_point() and e.numel() == 1), None)


def takes_mask(model: nn.Module) -> bool:
    """Whether the model can be told which positions are padding."""
    return any("mask" in one.name for one in _signature(model))


_signatures: weakref.WeakKeyDictionary[Any, tuple[inspect.Parameter, ...]] = weakref.WeakKeyDictionary()
"""What methods take, as they were asked before: every step asks."""


def _signature(model: nn.Module) -> tuple[inspect.Parameter, ...]:
    """What `forward` takes; nothing where it does not say."""
    try:
        own = getattr(model.forward, "__func__", None)
        if own is None:  # put on the object, or no method of Python's
            return tuple(inspect.signature(model.forward).parameters.values())
        if own not in _signatures:
            _signatures[own] = tuple(inspect.signature(model.forward).parameters.values())
        return _signatures[own]
    except (TypeError, ValueError):
        return ()


def parameters_of(model: nn.Module) -> tuple[str, ...]:
    """Names of what `forward` takes by position; none where it does not say."""
    parameters = _signature(model)
    return tuple(one.name for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD))


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, Tensor) else value
