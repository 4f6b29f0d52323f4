"""Passes of one kind as CUDA graphs: the kernels of a micro-batch are recorded once and launched again as a whole.

A processor launches a kernel in five to ten microseconds, and most kernels of a small model are done sooner. A graph
holds the addresses that its kernels read and write, and all numbers that are in no tensor; what differs in these, or
is looked into, is launched kernel by kernel.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from limpid.data.batches import MicroBatch
from limpid.model import Transformer
from limpid.model.kernels.unseen import is_hooked
from limpid.model.observe import Mode
from limpid.model.transformer import Hidden
from limpid.objectives import NEXT_TOKEN, POLICY

REPEATS = 2
"""Passes of one kind in a row that are launched kernel by kernel before the next one is recorded: they load and compile
what it launches."""

Gradients = Sequence[Tensor | None]


class Kind(NamedTuple):
    """What a graph fixes of a pass besides addresses."""

    shapes: tuple[tuple[int, ...], ...]
    labels: int
    loss_scale: float
    adds: bool  # its gradients to those of the micro-batches before it

    @classmethod
    def of(cls, inputs: dict[str, Tensor], labels: int, loss_scale: float, *, adds: bool) -> Kind:
        return cls(tuple(tuple(one.shape) for one in inputs.values()), labels, loss_scale, adds)


@dataclass
class Pass:
    """Forward and backward pass of a micro-batch: what it reads, and where it leaves what it makes."""

    model: Transformer
    trained: Sequence[nn.Parameter]
    inputs: dict[str, Tensor]
    labels: int
    mode: Mode
    ended: Hidden | None = None
    loss: Tensor | None = None

    def run(self) -> Gradients:
        """Every gradient, multiplied by the loss scale; hooks of the model see a pass when it is launched, not here."""
        loss = NEXT_TOKEN.loss({POLICY: self}, MicroBatch(self.inputs), self.labels, self.mode).value  # type: ignore[dict-item, arg-type]
        made = torch.autograd.grad(loss * self.mode.loss_scale, self.trained, allow_unused=True)
        self.loss = loss.detach()
        return [None if one is None else _laid_out_as(one, p) for one, p in zip(made, self.trained, strict=True)]

    def __call__(self, *given: Any, **named: Any) -> Hidden:
        ended = self.model.forward(*given, **named)
        assert isinstance(ended, Hidden)
        value = None if ended.value_matrix is None else ended.value_matrix.detach()
        self.ended = Hidden(ended.stream.detach(), ended.output_matrix.detach(), value)  # no graph is kept
        return ended

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)


class Recorder(Protocol):
    """Records what work launches."""

    def warm_up(self, work: Callable[[], object]) -> None:
        """Do once, unrecorded, what is to be recorded.

        Raises  RuntimeError where it waits for the device
        """

    def record(self, work: Callable[[], Gradients]) -> tuple[Callable[[], None], Gradients]:
        """What launches the work again, and where it leaves its results, which are not there before the first launch.

        Raises  RuntimeError for what else cannot be recorded
        """


class OnDevice:
    """Records what is launched on the GPU; all graphs share their memory, for one is done when the next begins."""

    def __init__(self) -> None:
        self.stream, self.pool = torch.cuda.Stream(), torch.cuda.graph_pool_handle()
        self.generator = torch.cuda.default_generators[torch.cuda.current_device()]

    def warm_up(self, work: Callable[[], object]) -> None:
        self.stream.wait_stream(torch.cuda.current_stream())
        with nothing_waits(), torch.cuda.stream(self.stream):
            work()
        torch.cuda.current_stream().wait_stream(self.stream)

    def record(self, work: Callable[[], Gradients]) -> tuple[Callable[[], None], Gradients]:
        graph, before = torch.cuda.CUDAGraph(), self.generator.clone_state()
        own = torch.cuda.graph(graph, pool=self.pool, stream=self.stream, capture_error_mode="thread_local")
        try:
            with torch.cuda.stream(torch.cuda.current_stream()), own:  # a graph that failed does not leave its stream
                made = work()
        except RuntimeError:
            self.generator.graphsafe_set_state(before)  # nor the state of random numbers
            raise
        return graph.replay, made


@contextmanager
def nothing_waits() -> Iterator[None]:
    """An error for what waits for the device: while a graph is recorded it would leave PyTorch's allocator unusable."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Synchronization debug mode")
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


class CudaGraphs:
    """The recorded passes of one model: of the first micro-batch of a step, and of those that add to its gradients."""

    def __init__(self, model: Transformer, recorder: Callable[[], Recorder] = OnDevice) -> None:
        self.model, self._new_recorder = model, recorder
        self.is_able = True  # until something cannot be recorded
        self.launches = 0  # of graphs
        self._recorder: Recorder | None = None
        self._recorded: dict[bool, tuple[Kind, Pass, Callable[[], None]]] = {}  # by whether gradients are added
        self._repeats: dict[bool, tuple[Kind, int]] = {}
        self._gradients: Gradients = ()
        self._ahead: tuple[MicroBatch, dict[str, Tensor]] | None = None  # what was launched before it was asked for
        self._anchor = torch.zeros((), requires_grad=True)  # so that a launched loss has a backward pass

    @cached_property
    def trained(self) -> list[nn.Parameter]:
        """What has a gradient."""
        return [parameter for parameter in self.model.parameters() if parameter.requires_grad]

    def release(self) -> None:
        """Give the memory back; passes are recorded anew when they come again."""
        self._recorded.clear()
        self._repeats.clear()
        self._gradients, self._recorder, self._ahead = (), None, None

    def launch_ahead(self, micro: MicroBatch, labels: int, loss_scale: float) -> None:
        """Have the device begin with the first micro-batch of the next step, if passes of its kind are recorded.

        The gradients of the step before are no more then, and weights must stay as they are until that step.
        """
        inputs = self._on_device(micro)
        kind = Kind.of(inputs, labels, loss_scale, adds=False)
        if self._is_recorded(kind):
            self._run(kind, inputs)
            self._ahead = micro, inputs

    def loss(self, micro: MicroBatch, labels: int, mode: Mode) -> Tensor | None:
        """The loss of a micro-batch, whose backward pass has all gradients at once.

        None where it is to be launched kernel by kernel.
        """
        if not self.is_able:
            return None
        ahead, self._ahead = self._ahead, None
        begun = ahead is not None and ahead[0] is micro
        inputs = ahead[1] if ahead is not None and begun else self._on_device(micro)
        kind = Kind.of(inputs, labels, mode.loss_scale, adds=self.trained[0].grad is not None)
        if not self._is_recorded(kind) and not (self._repeated(kind) and self._record(kind, inputs, mode)):
            return None
        if kind.adds and not self._holds_gradients():
            return None
        recorded, launched = self._recorded[kind.adds][1], begun and not kind.adds
        self.model.launch = partial(self._ended, recorded) if launched else partial(self._run, kind, inputs)
        try:
            self.model(inputs["tokens"], path=mode.path, observe=mode.observe, form_logits=False)
        finally:
            self.model.launch = None
        loss: Tensor = _Launched.apply(self._anchor, recorded.loss, self._give_gradients)
        return loss

    def _on_device(self, micro: MicroBatch) -> dict[str, Tensor]:
        return {name: torch.as_tensor(micro[name]).to(self.model.device) for name in NEXT_TOKEN.fields}

    def _is_recorded(self, kind: Kind) -> bool:
        return kind.adds in self._recorded and self._recorded[kind.adds][0] == kind

    def _repeated(self, kind: Kind) -> bool:
        """Whether passes of this kind come again and again."""
        before, count = self._repeats.get(kind.adds, (kind, 0))
        self._repeats[kind.adds] = kind, count + 1 if before == kind else 1
        return before == kind and count >= REPEATS

    def _holds_gradients(self) -> bool:
        """Whether the gradients of this step are those that graphs add to."""
        held = zip(self.trained, self._gradients, strict=False)
        return bool(self._gradients) and all(p.grad is gradient for p, gradient in held)

    def _record(self, kind: Kind, inputs: dict[str, Tensor], mode: Mode) -> bool:
        """Record the pass; returns whether that can be done."""
        if (kind.adds and not self._holds_gradients()) or is_hooked_inside(self.model):
            return False
        if not kind.adds:  # what adds to other gradients than those to come goes; memory without a graph is not shared
            self._recorded.clear()
            self._gradients, self._recorder = (), None
        self._recorder = self._recorder or self._new_recorder()
        one = Pass(self.model, self.trained, {n: x.clone() for n, x in inputs.items()}, kind.labels, mode)
        try:
            self._recorder.warm_up(one.run)
            launch, made = self._recorder.record(partial(_added, one.run, self._gradients) if kind.adds else one.run)
        except RuntimeError:  # out of memory, or an operation that waits for the device
            self.is_able = False
            self.release()
            return False
        self._gradients = self._gradients if kind.adds else made
        self._recorded[kind.adds] = kind, one, launch
        return True

    def _run(self, kind: Kind, inputs: dict[str, Tensor]) -> Hidden:
        """Launch a pass, backward pass and all; where its forward pass ends."""
        _, recorded, launch = self._recorded[kind.adds]
        for name, tensor in inputs.items():
            recorded.inputs[name].copy_(tensor)
        launch()
        self.launches += 1
        return self._ended(recorded)

    @staticmethod
    def _ended(recorded: Pass) -> Hidden:
        assert recorded.ended is not None
        return recorded.ended

    def _give_gradients(self) -> None:
        for parameter, gradient in zip(self.trained, self._gradients, strict=True):
            parameter.grad = gradient


class _Launched(torch.autograd.Function):
    """A loss whose gradients a graph has left in their place: its backward pass hands them to the parameters."""

    @staticmethod
    def forward(ctx: Any, _: Tensor, loss: Tensor, give: Callable[[], None]) -> Tensor:
        ctx.give = give
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, loss_bar: Tensor) -> tuple[None, None, None]:
        ctx.give()
        return None, None, None


def _added(run: Callable[[], Gradients], gradients: Gradients) -> Gradients:
    """The same, added to gradients that are there."""
    pairs = [(there, new) for there, new in zip(gradients, run(), strict=True) if there is not None and new is not None]
    torch._foreach_add_([there for there, _ in pairs], [new for _, new in pairs])
    return gradients


def _laid_out_as(gradient: Tensor, parameter: Tensor) -> Tensor:
    """A gradient in the layout of its parameter, as updates read it."""
    if gradient.stride() == parameter.stride():
        return gradient
    return torch.empty_like(parameter).copy_(gradient)


def is_hooked_inside(model: nn.Module) -> bool:
    """Whether somebody looks into the passes of a model: a hook of a part, or of a gradient."""
    looked_into = any(is_hooked(part) for part in model.modules() if part is not model)
    of_tensors = ("_backward_hooks", "_post_accumulate_grad_hooks")
    return (
        looked_into
        or bool(model._backward_hooks or model._backward_pre_hooks)
        or any(getattr(parameter, hooks, None) for parameter in model.parameters() for hooks in of_tensors)
    )
