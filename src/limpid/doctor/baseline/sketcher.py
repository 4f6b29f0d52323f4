"""Sketches of the first steps, taken as the loop goes; nothing of the training is touched."""

from __future__ import annotations

import random
import weakref
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from limpid.doctor.baseline.sketch import sketch
from limpid.doctor.baseline.step_sketch import Kind, Moment, Place, StepSketch
from limpid.doctor.baseline.update_sketcher import UpdateSketcher
from limpid.doctor.calls import LABEL_NAMES, Call
from limpid.doctor.micro_batches import ANSWER_MASKS

if TYPE_CHECKING:
    from limpid.doctor.model_info import ModelInfo
    from limpid.doctor.watched import Watched

Known = tuple[str, int, str, dict[str, str]]
"""Of a call: the module, which call of it, the state of the random numbers, where what it is given comes from."""
MOST = 2000
"""Tensors of a step that are kept."""
PRECISIONS = {"high": 2.0**-10, "medium": 2.0**-7}
"""Spacing of what float32 products are computed in where torch was told so: TF32, bfloat16."""


def is_pass(info: ModelInfo, module: nn.Module) -> bool:
    """Whether a call of this is told of as a pass; of other parts each is sketched as it is called."""
    return module in (info.outer, info.model, info.largest)


class StepSketcher:
    """One step, from its first forward pass on."""

    def __init__(self, watched: Watched) -> None:
        self.watched, self.info = watched, watched.info
        self.step = StepSketch(compiled=is_compiled(watched.info))
        self.passes = 0
        self.began = False
        self.inside = self.in_parts = False  # of a pass of the whole model; of one whose modules the loop calls itself
        self.modules = {id(module): name for name, module in self.info.model.named_modules()}
        self._known: dict[int, tuple[Any, int, str]] = {}  # tensors that are sketched, their version, what they are
        self._counts: Counter[str] = Counter()
        self._depth = 0
        self._state = self._began = ""  # of torch's random numbers: now, and as the pass began
        self.updates = UpdateSketcher(self.step, self.info, len(self.modules))

    # forward

    def begins(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A forward pass that is learned from."""
        self._begin_pass()
        self.inside = True
        call = Call.to(self.info.model, args, kwargs)
        named = dict(zip(call.names, args, strict=False)) if call.names else dict(zip("0123456789", args, strict=False))
        for name, tensor in tensors_of(named | kwargs):
            part = "labels" if name.partition(".")[0] in LABEL_NAMES else "data"
            self._keep(Place(Kind.GIVEN, self.passes, "", 0, name), part, tensor)

    def _begin_pass(self) -> None:
        if not self.began:
            self.began = True
            self._start()
        self._counts.clear()
        self._depth, self._state = 0, state_of_torch()
        self._began = self._state

    def gave(self, output: Any) -> None:
        """What the whole model returned; whatever came of the pass."""
        self.inside = False
        self._known.clear()
        for name, tensor in tensors_of(output):
            if tensor.is_floating_point():
                self._computes_in(tensor.dtype)
            is_loss = name == "loss" or (tensor.ndim == 0 and tensor.grad_fn is not None)
            part = "loss" if is_loss else "model"
            drew = self._began if self._began != state_of_torch() else ""
            self._keep(Place(Kind.OUTPUT, self.passes, "", 0, name), part, tensor, None, drew)
            if not is_loss:
                self._watch_gradient(Place(Kind.BACK, self.passes, "", 0, name), tensor, "loss")
        self.passes += 1

    def _start(self) -> None:
        step, info = self.step, self.info
        step.random = states_of_random()
        known = [p for p in info.parameters.values() if not is_lazy(p)]
        step.terms = max([p[0].numel() for p in known if p.ndim > 1 and len(p)], default=1)
        kind = info.device.type
        if torch.is_autocast_enabled(kind):
            self._computes_in(torch.get_autocast_dtype(kind))
        for name, parameter in info.parameters.items():
            self._computes_in(parameter.dtype)
            self._keep(Place(Kind.WEIGHT, 0, name), "model", parameter, {"trained": parameter.requires_grad})
        for name, buffer in info.model.named_buffers():
            self._keep(Place(Kind.BUFFER, 0, name), "model", buffer)

    def _computes_in(self, dtype: torch.dtype) -> None:
        if dtype.is_floating_point:
            eps = torch.finfo(dtype).eps
            if dtype == torch.float32:
                eps = PRECISIONS.get(torch.get_float32_matmul_precision(), eps)
            self.step.eps = max(self.step.eps, eps)

    def before_call(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Known | None:
        """A module is called: inside of a pass of the whole model, or by the loop itself."""
        if not self.inside and not self._depth:
            if id(module) not in self.modules or is_pass(self.info, module):
                return None  # of others; or told of as a pass
            if not self.in_parts:
                self.in_parts = True
                self._begin_pass()
        if self.inside and self.passes:
            return None  # of several passes the first is looked into
        name = self.modules.get(id(module), f"{type(module).__name__}, of no module")
        count = self._counts[name]
        self._counts[name] += 1
        from_outside = not self.inside and not self._depth
        self._depth += 1
        state = state_of_torch()
        drew, self._state = self._state if self._state != state else "", state  # the code between two modules
        sources: dict[str, str] = {}
        with torch.no_grad():
            for index, tensor in tensors_of({str(i): a for i, a in enumerate(args)} | kwargs):
                known = self._known.get(id(tensor))
                if known is not None and known[0]() is tensor and known[1] == _version(tensor):
                    sources[f"input {index}"] = known[2]
                else:
                    is_data = from_outside and not tensor.requires_grad
                    part = "data" if is_data else _part_of(module, tensor)
                    self._keep(Place(Kind.GIVEN, self.passes, name, count, index), part, tensor, None, drew)
        return name, count, state, sources

    def after_call(self, module: nn.Module, known: Known, output: Any) -> None:
        """What it returned."""
        name, count, state, sources = known
        self._depth -= 1
        self._state = state_of_torch()
        drew = state if self._state != state else ""
        plain = plain_attributes(module) | sources if not count else {}
        with torch.no_grad():
            for index, tensor in tensors_of(output):
                part = "loss" if isinstance(module, nn.modules.loss._Loss) else "model"
                self._computes_in(tensor.dtype)
                self._keep(Place(Kind.OUTPUT, self.passes, name, count, index), part, tensor, plain, drew)
                self._watch_gradient(Place(Kind.BACK, self.passes, name, count, index), tensor, "gradient")
                plain = {}

    def _keep(
        self, place: Place, part: str, tensor: Tensor, plain: Mapping[str, Any] | None = None, drew: str = ""
    ) -> None:
        if len(self.step.moments) >= MOST:
            return
        kept = sketch(tensor)
        if kept is not None:
            self.step.moments.append(Moment(place, part, kept, drew, 0.0, dict(plain or {}), self._depth))
            if place.kind in (Kind.GIVEN, Kind.OUTPUT):
                self._known[id(tensor)] = weakref.ref(tensor), _version(tensor), f"{place.kind} of {place.name}"

    def _watch_gradient(self, place: Place, tensor: Tensor, part: str) -> None:
        if tensor.grad_fn is None or len(self.step.moments) >= MOST:
            return
        slot, step, scale = tensor.output_nr, self.step, self.watched.scale or 1.0

        def back(gradients: tuple[Tensor | None, ...]) -> None:
            gradient = gradients[slot] if slot < len(gradients) else None
            if gradient is not None and len(step.moments) < MOST:
                with torch.no_grad():
                    kept = sketch(gradient / scale if scale != 1 else gradient)
                    step.moments.append(Moment(place, part, kept))

        tensor.grad_fn.register_prehook(back)

    # loss

    def compared(self, function: str, given: Any, target: Any) -> None:
        """What a loss function is given, outside of the model or inside."""
        for kind, part, value in ((Kind.SCORED, "loss", given), (Kind.TARGET, "labels", target)):
            if isinstance(value, Tensor):
                place = Place(kind, self._pass, function)
                index = sum(m.place[:3] == place[:3] for m in self.step.moments)
                self._keep(place._replace(call=index), part, value)

    def ends_in(self, root: Any) -> None:
        """What a backward pass begins at."""
        if not self.began:
            self._begin_pass()
        for _, tensor in tensors_of(root):
            index = sum(m.place[:2] == (Kind.LOSS, self._pass) for m in self.step.moments)
            self._keep(Place(Kind.LOSS, self._pass, "", index), "loss", tensor / (self.watched.scale or 1.0))
        self.passes += self.in_parts
        self.in_parts = False

    @property
    def _pass(self) -> int:
        """The pass that runs, or the last."""
        return self.passes if self.in_parts else max(0, self.passes - 1)

    def reported(self, batch: Any) -> None:
        """What the loop says its batch is."""
        pair = isinstance(batch, tuple | list) and len(batch) == 2
        for name, value in tensors_of(batch, numpy=True):
            first = name.partition(".")[0]
            of_labels = first in (*LABEL_NAMES, *ANSWER_MASKS) or (pair and first == "1")
            self._keep(Place(Kind.BATCH, 0, "", 0, name), "labels" if of_labels else "data", value)

    # update

    def update_begins(self, optimizer: Any) -> None:
        """Before each optimizer of the step."""
        self.updates.begins(optimizer)

    def update_ended(self, optimizer: Any) -> None:
        """After each optimizer."""
        self.updates.ended(optimizer)

    def finish(self) -> StepSketch:
        """The step, once it has ended."""
        self.updates.finish()
        return self.step


def is_compiled(info: ModelInfo) -> bool:
    """Whether a part of the model is compiled: what is called inside of it is not told of."""
    return info.compiled or any(type(module).__name__ == "OptimizedModule" for module in info.outer.modules())


def _part_of(module: nn.Module, tensor: Tensor) -> str:
    is_target = isinstance(module, nn.modules.loss._Loss) and not tensor.requires_grad
    return "labels" if is_target else "model"


def _version(tensor: Tensor) -> int:
    return -1 if tensor.is_inference() else tensor._version


def tensors_of(value: Any, name: str = "", depth: int = 3, numpy: bool = False) -> Iterator[tuple[str, Tensor]]:
    """Every tensor in tuples, lists and mappings, by its name."""
    if isinstance(value, Tensor):
        yield name, value.detach() if numpy else value
    elif numpy and isinstance(value, np.ndarray) and value.dtype.kind in "iufb" and value.dtype.itemsize < 16:
        yield name, torch.from_numpy(np.ascontiguousarray(value.astype("int64") if value.dtype.kind == "u" else value))
    elif depth and isinstance(value, Mapping | tuple | list):
        pairs = value.items() if isinstance(value, Mapping) else enumerate(value[:64])
        for key, inner in pairs:
            yield from tensors_of(inner, f"{name}.{key}" if name else str(key), depth - 1, numpy)


def plain_attributes(module: nn.Module) -> dict[str, Any]:
    """Numbers and words that a module keeps."""
    return {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, bool | int | float | str) and not name.startswith("_") and len(str(value)) < 32
    }


def state_of_torch() -> str:
    """Of torch's random numbers, on all devices that have begun."""
    digest = zlib.crc32(torch.get_rng_state().numpy().tobytes())
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        for state in torch.cuda.get_rng_state_all():
            digest = zlib.crc32(state.numpy().tobytes(), digest)
    return f"{digest:08x}"


def states_of_random() -> list[str]:
    """Of torch, Python and NumPy."""
    kept: Any = np.random.get_state()  # noqa: NPY002  the user's own
    in_numpy = zlib.crc32(kept[1].tobytes() + str(kept[2:]).encode())
    return [state_of_torch(), f"{zlib.crc32(repr(random.getstate()).encode()):08x}", f"{in_numpy:08x}"]
