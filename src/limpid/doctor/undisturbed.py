"""Run the user's code without a trace: parameters, gradients, random numbers and modes afterwards are as before."""

from __future__ import annotations

import collections
import contextlib
import functools
import io
import logging
import random
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils import parametrize
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass

from limpid.doctor.devices import OWN_NUMBERS, must_lie_in_range
from limpid.doctor.shield import Obstacle, Shield


def _address(tensor: Tensor) -> int:
    """Where a tensor's numbers lie; of one that is made of others, such as a quantised one, those of the first."""
    while is_traceable_wrapper_subclass(tensor):
        tensor = getattr(tensor, tensor.__tensor_flatten__()[0][0])
    return tensor.untyped_storage().data_ptr()


@functools.lru_cache(4096)
def _written(operation: Any) -> tuple[tuple[int, str], ...]:
    """The arguments that an operation writes to: place and name of each."""
    schema = getattr(operation, "_schema", None)
    if schema is None or not schema.is_mutable:
        return ()
    found = enumerate(schema.arguments)
    return tuple((i, one.name) for i, one in found if one.alias_info is not None and one.alias_info.is_write)


class _CopiedOnWrite(TorchDispatchMode):
    """Copies a tensor before the first operation that writes to it, so that those that none writes to take no room.

    Indices are looked at before a device is handed them, which one out of range would cost the training.
    """

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        super().__init__()
        self.owners: dict[int, list[Tensor]] = collections.defaultdict(list)
        for tensor in tensors:
            if tensor.layout == torch.strided and not tensor.is_meta and not hasattr(tensor, "full_tensor"):
                self.owners[_address(tensor)].append(tensor)
        self.kept: list[tuple[Tensor, Tensor]] = []

    @classmethod
    def is_infra_mode(cls) -> bool:
        return True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: to be skipped by the compiler would load it, seconds for a run that compiles nothing."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for place, name in _written(func):
            written = args[place] if place < len(args) else (kwargs or {}).get(name)
            for tensor in written if isinstance(written, list | tuple) else [written]:
                self.keep(tensor)
        must_lie_in_range(func, args, kwargs or {})
        return func(*args, **(kwargs or {}))

    def keep(self, tensor: Any) -> None:
        if isinstance(tensor, Tensor) and tensor.layout == torch.strided and not tensor.is_meta:
            for owner in self.owners.pop(_address(tensor), ()):
                self.kept.append((owner, owner.detach().clone()))

    def restore(self) -> None:
        for owner, before in self.kept:
            owner.data.copy_(before)


class _CopiedOnWriteUncompiled(_CopiedOnWrite):
    """The same where the compiler is there, which must not compile what the doctor does."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return True

    __torch_dispatch__ = _CopiedOnWrite.__torch_dispatch__


@contextlib.contextmanager
def undisturbed(shield: Shield, gradients: bool = False) -> Iterator[None]:
    """Run the block; afterwards nothing of the training has changed, whatever the block did to it.

    shield      of what the block calls
    gradients   let the block compute gradients: those there are put aside and put back
    Raises  Obstacle where something could not be put back: then the block is not run
    """
    if shield.obstacle:
        raise Obstacle(shield.obstacle)
    kept = [(parameter, parameter.grad) for parameter in shield.parameters]
    # hooks on gradients that are there act on the training: some make the update
    after = [hooks for p in shield.parameters if (hooks := getattr(p, "_post_accumulate_grad_hooks", None))]
    put_aside = [dict(hooks) for hooks in after]
    copied_on_write = _CopiedOnWriteUncompiled if "torch._dynamo" in sys.modules else _CopiedOnWrite
    writes = copied_on_write([*shield.parameters, *shield.copied_on_write])
    try:
        for hooks in after:
            hooks.clear()
        if gradients:
            for parameter, _ in kept:
                parameter.grad = None
        with _world_as_it_was(), writes, torch.set_grad_enabled(gradients):
            yield
    finally:
        writes.restore()
        for hooks, given in zip(after, put_aside, strict=True):
            hooks.update(given)
        for parameter, gradient in kept:
            parameter.grad = gradient
        shield.restore()


MODES: tuple[tuple[Callable[[], Any], Callable[[Any], Any]], ...] = (
    (torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled),
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    (torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
    (torch.get_num_threads, torch.set_num_threads),
)
"""Global modes of torch that code may set: how each is read and set."""
FLAGS = ((torch.backends.cudnn, ("enabled", "deterministic", "benchmark")),)


@contextlib.contextmanager
def _world_as_it_was() -> Iterator[None]:
    """Random numbers and global modes afterwards as before; nothing printed, logged, warned of or compiled."""
    numbers = torch.get_rng_state(), random.getstate(), np.random.get_state()  # noqa: NPY002  the user's own is kept
    on_devices = [(kind, kind.get_rng_state_all()) for kind in _with_numbers()]
    modes = [read() for read, _ in MODES]
    flags = [(owner, name, getattr(owner, name)) for owner, names in FLAGS for name in names]
    # where nobody has loaded the compiler, nothing is compiled; to load it takes a second
    eager = torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else contextlib.nullcontext()
    torch.set_autocast_cache_enabled(False)  # casts made without gradients would be taken for the training's own
    formed, parametrize._cache = parametrize._cache, {}  # as would weights be that parametrisations make
    try:
        with eager, warnings.catch_warnings(), _silence():
            warnings.simplefilter("ignore")
            yield
    finally:
        parametrize._cache = formed
        for (read, put), mode in zip(MODES, modes, strict=True):
            if read() != mode:
                put(mode)
        for owner, name, value in flags:
            if getattr(owner, name) != value:
                setattr(owner, name, value)
        torch.set_rng_state(numbers[0])
        random.setstate(numbers[1])
        np.random.set_state(numbers[2])  # noqa: NPY002
        for kind, states in on_devices:
            kind.set_rng_state_all(states)


class _OtherThreads(io.TextIOBase):
    """A stream that passes on what other threads write."""

    def __init__(self, stream: Any) -> None:
        self.stream, self.silent = stream, threading.get_ident()

    def write(self, text: str) -> int:
        return len(text) if threading.get_ident() == self.silent else self.stream.write(text)

    def flush(self) -> None:
        self.stream.flush()


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """What this thread prints and logs meanwhile is dropped."""
    handle, silent = logging.Logger.handle, threading.get_ident()

    def others(logger: logging.Logger, record: logging.LogRecord) -> None:
        if threading.get_ident() != silent:
            handle(logger, record)

    setattr(logging.Logger, "handle", others)  # noqa: B010  mypy takes it for a method of an instance
    out, err = _OtherThreads(sys.stdout), _OtherThreads(sys.stderr)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            yield
    finally:
        setattr(logging.Logger, "handle", handle)  # noqa: B010


def _with_numbers() -> list[Any]:
    """Kinds of devices in use that have random numbers of their own."""
    kinds = [getattr(torch, kind) for kind in OWN_NUMBERS if hasattr(torch, kind)]
    return [kind for kind in kinds if kind.is_initialized() and kind.is_available()]


def seeded(seed: int = 0) -> None:
    """The same random numbers for every probe inside an undisturbed block."""
    torch.default_generator.manual_seed(seed)  # torch.manual_seed seeds devices, too, that wake up only later
    for kind in _with_numbers():
        kind.manual_seed_all(seed)
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
