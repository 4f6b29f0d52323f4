"""What every call of a step made, kept in a folder, so that two such steps can be compared: safetensors and JSON alone.

recording.json            the document, the arguments of every call, and where each array lies
values-0000.safetensors   arrays in the order of the step, some 64 MB a file: no more waits in memory
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.hooks import RemovableHandle

from limpid.errors import CheckpointError, ConfigError
from limpid.files import MALFORMED, explained, parse_json, write_atomically
from limpid.jsonable import from_json, to_json
from limpid.operations.arrays import Unreadable, exact, is_float, raw
from limpid.operations.call import Call, Check
from limpid.operations.document import VERSION, RecordingDocument, recording_from
from limpid.operations.report import Again
from limpid.source import KEPT

WAITING = 64 << 20
"""Bytes that wait in memory to be written."""
WITHOUT_NUMBERS = ("empty", "new_empty", "resize", "set_")
"""Operations whose results nothing is written to yet."""


@dataclass
class Keeper:
    """Writes a recording while its step is taken.

    Raises  ConfigError for a folder that holds anything already
    """

    folder: Path
    waiting: dict[str, Tensor] = field(default_factory=dict)
    bytes: int = 0
    files: int = 0
    places: dict[str, int] = field(default_factory=dict)
    arguments: dict[int, dict[str, Any]] = field(default_factory=dict)
    rounding: dict[int, float] = field(default_factory=dict)
    """Of a call, what it rounded by at most, and may have, in parts of its results' root mean square."""
    entered: dict[str, int] = field(default_factory=dict)
    after: dict[str, int] = field(default_factory=dict)
    """Of what is no call's own, how many calls came before."""
    hooks: list[RemovableHandle] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.folder.exists() and (not self.folder.is_dir() or any(self.folder.iterdir())):
            raise ConfigError(f"{self.folder} exists and holds something: a recording is kept in a new folder")
        with explained(str(self.folder)):
            self.folder.mkdir(parents=True, exist_ok=True)

    def add(self, name: str, tensor: Tensor) -> None:
        """Keep an array as it is now; one that is no plain array is left out."""
        if not isinstance(tensor, Tensor) or name in self.places:
            return
        try:
            with _disable_current_modes():  # this is no part of the step
                raw(tensor)  # which refuses what is none
                copy = tensor.detach().cpu().resolve_conj().resolve_neg()
                copy = torch.view_as_real(copy) if copy.is_complex() else copy
                copy = copy.clone(memory_format=torch.contiguous_format)
        except Unreadable:
            return
        self.waiting[name], self.places[name], self.after[name] = copy, self.files, len(self.arguments)
        self.bytes += copy.nbytes
        if self.bytes >= WAITING:
            self.write()

    def write(self) -> None:
        """Write what waits."""
        if self.waiting:
            with explained(str(self.folder)), _disable_current_modes():
                save_file(self.waiting, _file(self.folder, self.files))
            self.waiting, self.bytes, self.files = {}, 0, self.files + 1

    def call(self, call: Call, given: dict[str, Any], made: Any) -> None:
        """Keep what a call made, and the numbers among its arguments."""
        self.arguments[call.number] = {name: value for name, one in given.items() if (value := _plain(one)) is not None}
        name = call.operation.removeprefix("aten.")
        if call.check is Check.MOVED or name.startswith(WITHOUT_NUMBERS):
            return
        results = made if isinstance(made, list | tuple) else [made]
        for place, result in enumerate(results):
            self.add(f"{call.number}/{place}", result)
        if call.worst is not None and results and isinstance(results[call.worst.output], Tensor):
            with _disable_current_modes():
                array = raw(results[call.worst.output])
            rms = float(np.sqrt(np.mean(np.abs(exact(array)) ** 2))) if array.size and is_float(array) else 0.0
            self.rounding[call.number] = call.worst.bound / rms if rms else 0.0

    def watch(self, model: nn.Module, names: dict[int, str]) -> None:
        """Keep what modules make, their gradients, and parameters before the step.

        What is compiled into one with what is around it is not seen: its outermost module is.
        """
        with _disable_current_modes():
            for name, parameter in model.named_parameters():
                self.add(f"before/{own_name(name)}", parameter)
        self.hooks.append(model.register_forward_pre_hook(self._fed, with_kwargs=True))
        for module in _seen(model):
            path = own_name(names.get(id(module), ""))
            self.hooks.append(module.register_forward_hook(_Made(self, path)))

    def _fed(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        for name, value in [*((str(place), one) for place, one in enumerate(args)), *kwargs.items()]:
            self.add(f"in/{name}", value)

    def gradients(self, model: nn.Module) -> None:
        """Keep gradients of parameters, as the optimizer meets them."""
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                self.add(f"grad/{own_name(name)}", parameter.grad)

    def end(self, model: nn.Module) -> None:
        """Keep gradients that no optimizer met, and parameters after the step; write all of it."""
        for hook in self.hooks:
            hook.remove()
        self.gradients(model)
        for name, parameter in model.named_parameters():
            self.add(f"after/{own_name(name)}", parameter)
        self.write()

    def finish(self, document: RecordingDocument, again: Again | None) -> None:
        """Write recording.json: from then on the folder is a recording."""
        held = {"version": VERSION, "torch": torch.__version__, "document": document, "arguments": self.arguments,
                "rounding": self.rounding, "values": self.places, "after": self.after, "again": again}  # fmt: skip
        with explained(str(self.folder)):
            write_atomically(self.folder / KEPT, json.dumps(to_json(held)).encode())


class _Made:
    """A module's results, each time it is called, and the gradient of each."""

    def __init__(self, keeper: Keeper, path: str) -> None:
        self.keeper, self.path = keeper, path

    def __call__(self, module: nn.Module, args: Any, made: Any) -> None:
        time = self.keeper.entered.get(self.path, 0)
        self.keeper.entered[self.path] = time + 1
        found: list[Tensor] = []
        _tensors(made, found)
        for place, tensor in enumerate(found):
            name = f"{self.path}#{time}.{place}"
            self.keeper.add(f"out/{name}", tensor)
            if tensor.requires_grad:
                tensor.register_hook(_Gradient(self.keeper, f"grad-out/{name}"))


class _Gradient:
    def __init__(self, keeper: Keeper, name: str) -> None:
        self.keeper, self.name = keeper, name

    def __call__(self, gradient: Tensor) -> None:
        self.keeper.add(self.name, gradient)


def own_name(name: str) -> str:
    """A path without what torch.compile and wrappers for several processes put into it."""
    return ".".join(part for part in name.split(".") if part not in ("_orig_mod", "_fsdp_wrapped_module", "module"))


def _seen(module: nn.Module) -> Iterator[nn.Module]:
    """Modules whose results are seen without changing how they run: none inside of a compiled one."""
    if getattr(module, "_compiled_call_impl", None) is not None:
        return
    yield module
    if not isinstance(module, torch._dynamo.OptimizedModule):
        for part in module.children():
            yield from _seen(part)


def _tensors(made: Any, found: list[Tensor]) -> None:
    if isinstance(made, Tensor):
        found.append(made)
    elif isinstance(made, dict):
        for one in made.values():
            _tensors(one, found)
    elif isinstance(made, list | tuple):
        for one in made:
            _tensors(one, found)


def _plain(value: Any) -> Any:
    """Numbers and words among arguments; None for tensors and what has no word."""
    if isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    if isinstance(value, list | tuple) and value and all(isinstance(one, bool | int | float) for one in value):
        return list(value)
    return None


def _file(folder: Path, number: int) -> Path:
    return folder / f"values-{number:04}.safetensors"


@dataclass(frozen=True)
class Kept:
    """A recording that lies in a folder, read as it is asked for."""

    folder: Path
    held: dict[str, Any]
    opened: dict[Path, Any] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def document(self) -> RecordingDocument:
        """What was said of it."""
        return recording_from(self.held["document"])

    @property
    def again(self) -> Again | None:
        """What takes its step once more; None of a step that was taken by somebody's own code."""
        found = self.held.get("again")
        return None if found is None else from_json(Again, found)

    @property
    def names(self) -> dict[str, int]:
        """Names of its arrays, in the order of the step."""
        found: dict[str, int] = self.held["values"]
        return found

    def tensor(self, name: str) -> Tensor:
        """An array as it was.

        Raises  CheckpointError for a file that is cut short
        """
        file = _file(self.folder, self.names[name])
        try:
            if file not in self.opened:
                self.opened.clear()  # arrays are asked for in their order: one file at a time
                self.opened[file] = safe_open(file, "pt")
            tensor: Tensor = self.opened[file].get_tensor(name)
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{file} cannot be read: record the step again") from error
        return tensor

    def calls_before(self, name: str) -> int:
        """How many calls came before an array was there."""
        return int(self.held["after"][name])

    def arguments(self, number: int) -> dict[str, Any]:
        """Numbers and words among a call's arguments."""
        found: dict[str, Any] = self.held["arguments"].get(str(number), {})
        return found

    def rounding(self, number: int) -> float:
        """What a call may round by, in parts of its result's root mean square; 0 where nobody knows."""
        return float(self.held["rounding"].get(str(number), 0.0))


def read(folder: Path) -> Kept:
    """A recording that was kept.

    Raises  CheckpointError for a file that is cut short, or of another version
    """
    file = folder / KEPT
    try:
        held = parse_json(file.read_bytes())
        version = held["version"]
        found = Kept(folder, held)
        if version == VERSION:
            found.document, found.again  # noqa: B018  which reads all of it
    except (OSError, *MALFORMED) as error:
        raise CheckpointError(f"{file} cannot be read as a recording: record the step again") from error
    if version != VERSION:
        raise CheckpointError(f"{file} is of version {version}, expected {VERSION}: record the step again")
    return found
