"""Compiled code under a recording: it runs as it was written, so that each call is seen, and beside as compiled."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes

from limpid.adjoints.watch import Watch
from limpid.operations.module_path import ModulePath
from limpid.operations.region import Region
from limpid.operations.region_judged import Called, judge

DYNAMO = "torch._dynamo.eval_frame"
ENTERED, ASKS = "compile_wrapper", "_callback_from_stance"
"""Of PyTorch: what every compiled function begins with, and what that asks for the compiler."""


class Regions:
    """What was met of compiled code; the first call of each region is compared."""

    def __init__(self, model: nn.Module, path: ModulePath, custom: Watch, source: Callable[[], str]) -> None:
        self.model, self.path, self.custom, self.source = model, path, custom, source
        self.found: dict[int, Region] = {}  # by the identity of its module, or function
        self.is_again = False

    def meet(self, frame: FrameType) -> None:
        """A compiled function is called, outside of all others."""
        compiler, written = frame.f_locals["self"], frame.f_locals["fn"]
        module = _module_of(written)
        key = id(written if module is None else module)
        if key in self.found:
            self.found[key].calls += 1
            return
        name = type(module).__name__ if module is not None else getattr(written, "__qualname__", "a function")
        where = self.path.names.get(id(module), self.path.innermost)
        region = self.found[key] = Region(name, where, self.source())
        called = Called.of(written, module, frame.f_locals["args"], frame.f_locals["kwargs"])
        graphs = _graphs()
        try:
            with self._apart():
                judge(region, called, functools.partial(_compiled, compiler, written), self.model)
        except Exception as error:  # the step goes on, whatever it is
            region.why = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:200]}"
        region.is_anew = _graphs() != graphs

    def name_unseen(self) -> None:
        """Compiled modules of a PyTorch that does not tell when one is called: none is compared."""
        for name, module in self.model.named_modules():
            if getattr(module, "_compiled_call_impl", None) or isinstance(module, torch._dynamo.OptimizedModule):
                why = f"PyTorch {torch.__version__} does not tell when compiled code is called"
                self.found[id(module)] = Region(type(module).__name__, name, "", 0, why=why)

    @contextmanager
    def _apart(self) -> Iterator[None]:
        """Where nothing is recorded, and no hook of the recording is in what is compiled."""
        self.is_again = self.custom.is_again = True
        try:
            with ExitStack() as stack:
                stack.enter_context(_disable_current_modes())
                stack.enter_context(_no_function_modes())
                stack.enter_context(self.path.paused())
                stack.enter_context(torch.enable_grad() if torch.is_grad_enabled() else torch.no_grad())
                yield
        finally:
            self.is_again = self.custom.is_again = False


@contextmanager
def run_as_written(regions: Regions) -> Iterator[None]:
    """Compiled functions run uncompiled, and tell that they are called; the compiler's own cache stays as it is."""
    eager = sys.modules.get(DYNAMO)
    if eager is None:  # nothing was compiled yet
        yield
        return
    if not hasattr(eager, ASKS):
        regions.name_unseen()
        with torch.compiler.set_stance("force_eager"):
            yield
        return
    original = getattr(eager, ASKS)

    def asked(callback: Any) -> Any:
        frame = sys._getframe(1)
        if frame.f_code.co_name == ENTERED and not regions.is_again and not _is_inside(frame):
            regions.meet(frame)
        return original(callback)

    setattr(eager, ASKS, asked)
    try:
        with torch.compiler.set_stance("force_eager"):
            yield
    finally:
        setattr(eager, ASKS, original)


def _compiled(compiler: Any, written: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """A region as the step's own compiler has it.

    Raises  RuntimeError where nothing of it is compiled
    """
    from torch._C._dynamo.eval_frame import set_fullgraph_compiled_frame_count as count_from

    before = count_from(0)
    try:
        with torch.compiler.set_stance("default"):
            made = compiler(written)(*args, **kwargs)
    finally:
        compiled = count_from(before)
    if compiled == 0:
        raise RuntimeError("PyTorch compiles nothing of it")
    return made


def _graphs() -> int:
    """How many PyTorch has compiled."""
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


def _is_inside(frame: FrameType) -> bool:
    """Whether a compiled function calls it, which is one with it."""
    above = frame.f_back
    while above is not None:
        if above.f_code is frame.f_code:
            return True
        above = above.f_back
    return False


def _module_of(written: Any) -> nn.Module | None:
    """The module that is compiled; None of a function."""
    inner = [one.cell_contents for one in getattr(written, "__closure__", None) or () if _is_full(one)]
    for one in (written, *inner):
        owner = one if isinstance(one, nn.Module) else getattr(one, "__self__", None)
        if isinstance(owner, nn.Module):
            return owner
    return None


def _is_full(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


@contextmanager
def _no_function_modes() -> Iterator[None]:
    """Without modes above autograd, on which compiled code depends."""
    held = [torch._C._pop_torch_function_stack() for _ in range(torch._C._len_torch_function_stack())]
    try:
        yield
    finally:
        for one in reversed(held):
            torch._C._push_on_torch_function_stack(one)
