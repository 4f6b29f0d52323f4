"""What a run starts from and every step changes: models, optimizer, loss scale, counters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import Tensor

from limpid.config import TrainConfig
from limpid.model import Transformer, initialise
from limpid.model.spread import spread_like
from limpid.objectives import POLICY
from limpid.quantities import parameters
from limpid.training import average
from limpid.training.autotune import decide_launches
from limpid.training.cuda_graphs import CudaGraphs
from limpid.training.memory import require_states_fit
from limpid.training.mesh import Mesh
from limpid.training.parallel.pipeline import Pipeline
from limpid.training.precision import Arithmetic, arithmetic
from limpid.training.update import make_optimizer

T = TypeVar("T")


@dataclass
class State:
    """Everything a step changes."""

    models: dict[str, Transformer]  # the one that is trained under POLICY; a reference or reward model beside it
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    step: int = 0  # steps taken
    updates: int = 0  # updates made: fewer than steps when float16 overflowed
    mesh: Mesh = field(default_factory=Mesh)  # the processes that take the step together
    average: dict[str, Tensor] = field(default_factory=dict)  # of the trained weights, where one is kept
    pipeline: Pipeline | None = None  # where the processes hold stages of the model
    graphs: CudaGraphs | None = None  # where passes are recorded, and launched as a whole

    @property
    def model(self) -> Transformer:
        """The one that is trained."""
        return self.models[POLICY]

    def by_one(self, work: Callable[[Transformer], T]) -> T:
        """What the main process makes of the trained model in one piece, on every process; or its error."""
        weights = {} if self.mesh.world == 1 else self.mesh.gathered(self.model)

        def of_whole() -> T:
            if self.mesh.world == 1:
                return work(self.model)
            whole = Transformer(self.model.config, self.model.compute)
            whole.load_state_dict(weights, assign=True)
            return work(whole)

        return self.mesh.decided(of_whole)


def fresh_state(config: TrainConfig, mesh: Mesh | None = None) -> State:
    """Model, optimizer and loss scaling before the first step, spread over the mesh; without one, in this process."""
    mesh = Mesh() if mesh is None else mesh
    formats = arithmetic(config.run.precision)
    if mesh.world == 1:
        require_states_fit(config, mesh.device)
    model = initialise(Transformer(config.model, formats.compute).to(formats.parameters), config.run.seed)
    model.to(mesh.device)
    if config.run.compile == "on" and mesh.parallel.tensor == 1:
        model.compile_blocks()
    set_up(model, config)
    pipeline = Pipeline(model, mesh) if mesh.parallel.pipeline > 1 else None
    for part in [model] if pipeline is None else pipeline.stages:
        mesh.spread(part)
    optimizer = make_optimizer(model, config.update)
    scaler = make_scaler(formats, mesh.device)
    begun = average.begun(model, config.update)
    at_once, _ = decide_launches(config, mesh.device, mesh.world)
    graphs = CudaGraphs(model) if at_once else None
    return State({POLICY: model}, optimizer, scaler, mesh=mesh, average=begun, pipeline=pipeline, graphs=graphs)


def set_up(model: Transformer, config: TrainConfig) -> None:
    """Say which parameters are trained, and whether blocks are computed again in the backward pass."""
    for parameter in parameters(config.model, config.update.frozen):
        model.get_parameter(parameter.name).requires_grad_(parameter.trained)
    model.recomputed = config.run.gradient_checkpointing == "on"


def make_scaler(arithmetic: Arithmetic, device: torch.device) -> torch.amp.GradScaler:
    """Loss scaling for float16; for other formats one that does nothing."""
    return torch.amp.GradScaler(device.type, enabled=arithmetic.scales_loss)


def set_weights(model: Transformer, weights: Mapping[str, Tensor]) -> None:
    """Give parameters their values, or, where they are spread over processes, this process's part of them."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name in weights:
                parameter.copy_(spread_like(weights[name], parameter))


def set_threads(config: TrainConfig) -> None:
    """Use as many threads as the run did before: the order of sums, hence the last bit, depends on it."""
    if config.run.threads:
        torch.set_num_threads(config.run.threads)
