"""The memory model of limpid's own engine: its peak over one step, from what its operations hold."""

from __future__ import annotations

from dataclasses import dataclass, replace

from limpid.config import ModelConfig, TrainConfig
from limpid.kernel_limits import packed_entries
from limpid.planning.figure import Figure, Number, evaluate, figure
from limpid.planning.number_formats import BYTES
from limpid.planning.operation_memory import Kernels, Row, kernels_of, rows, sizes
from limpid.planning.parameters import parameter_count
from limpid.quantities import MOMENTS, parameters, trained_parameters, update_rule

MEASURED = "what the engine saves; measured by tests/planning/test_engine_memory.py"


@dataclass(frozen=True)
class Peak:
    """The moment of a step at which most memory is held: the backward pass of one row, or the update."""

    row: Row
    saved_bytes: dict[str, int]
    """By row, all blocks together."""
    workspace_bytes: int
    gradients: int
    """Parameters whose gradients are held."""

    def bytes(self, per_gradient: int) -> int:
        """Everything that comes and goes within a step: activations, workspace, gradients."""
        return sum(self.saved_bytes.values()) + self.workspace_bytes + self.gradients * per_gradient


def peak(config: TrainConfig, kernels: Kernels) -> Peak:
    """Walk the rows backwards: activations are freed, gradients added; a block that is recomputed comes back whole."""
    numbers, table = sizes(config), rows(config, kernels)
    p, c = int(numbers["p"]), int(numbers["c"])

    def value(equation: str) -> int:
        return int(evaluate(equation, numbers))

    saved, recomputed = dict.fromkeys((row.name for row in table), 0), None
    for row in table:
        saved[row.name] += 0 if row.recomputed_block is not None else value(row.saved)
    all_gradients = sum(value(row.parameters) for row in table)
    accumulates = config.run.gradient_accumulation_steps > 1  # then all gradients are there from the second micro-batch
    gradients, worst = 0, Peak(Row("update", "0", "0"), {}, 0, all_gradients)
    for row in reversed(table):
        if row.recomputed_block is not None and row.recomputed_block != recomputed:
            recomputed = row.recomputed_block
            for other in table:
                saved[other.name] += value(other.saved) if other.recomputed_block == recomputed else 0
        new_gradients = value(row.parameters) * c  # as the product makes them, before they are cast or added
        here = Peak(row, dict(saved), value(row.backward_workspace) + new_gradients,
                    all_gradients if accumulates else gradients)  # fmt: skip
        worst = max(worst, here, key=lambda at: at.bytes(p))
        gradients += value(row.parameters)
        saved[row.name] -= value(row.saved)
    return worst


def figures(config: TrainConfig, on_processor: bool = True) -> list[Figure]:
    """Training memory of limpid's own engine on one device: bytes of tensors at the peak of a step."""
    kernels = kernels_of(config, on_processor)
    numbers, worst = sizes(config), peak(config, kernels)
    saved = _saved(config, kernels, worst)
    listed = [
        *_states(config, worst),
        *_packed(config, kernels),
        *saved,
        _activations(saved),
        _workspace(worst, numbers),
    ]
    parts = {one.name.rpartition(".")[2]: one for one in listed if one.name.count(".") == 1}
    note = "all tensors at the worst moment of a step; Python and PyTorch themselves come on top"
    return [*listed, figure("memory.total", "bytes", " + ".join(parts), parts, note=note)]


def total_bytes(config: TrainConfig, on_processor: bool = True) -> float:
    """Training memory at the peak of a step."""
    return float(next(one.value for one in figures(config, on_processor) if one.name == "memory.total"))


def _states(config: TrainConfig, worst: Peak) -> list[Figure]:
    """Weights, optimizer and gradients."""
    optimizer, trained = config.update.optimizer, trained_parameters(config)
    p = sizes(config)["p"]
    moments = len(MOMENTS["adamw" if optimizer == "muon" else optimizer])
    fewer = sum(one.size for one in trained if len(MOMENTS[update_rule(optimizer, one)]) < moments)
    return [
        _weights(config.model, p),
        figure("memory.optimizer", "bytes", "(N * moments - single) * p",
               {"N": sum(one.size for one in trained), "p": p, "moments": moments, "single": fewer},
               note=f"moments of {optimizer}; single: parameters with one fewer"),
        *_average(config),
        figure("memory.gradients", "bytes", "at_the_peak * p", {"at_the_peak": worst.gradients, "p": p},
               note=f"those that are there when memory is highest, in the backward pass of {worst.row.name}"),
    ]  # fmt: skip


def _weights(model: ModelConfig, p: Number) -> Figure:
    """All parameters; the frozen matrices of the blocks in their own format, an int8 row with its unit."""
    numbers: dict[str, Number | Figure] = {"N": parameter_count(model), "p": p}
    if model.base_precision == "fp32":
        return figure("memory.weights", "bytes", "N * p", numbers, note="p bytes of a parameter")
    block = parameters(replace(model, num_layers=1, windowed_blocks=None))
    maps = [one.shape for one in block if one.hidden and not one.low_rank]
    numbers |= {
        "narrow": model.num_layers * sum(d_out * d_in for d_out, d_in in maps),
        "bytes_each": BYTES[model.base_precision],
        "units": model.num_layers * sum(d_out for d_out, _ in maps) if model.base_precision == "int8" else 0,
    }
    return figure("memory.weights", "bytes", "(N - narrow) * p + narrow * bytes_each + units * 4", numbers,
                  note=f"p bytes of a parameter; narrow: frozen matrices in {model.base_precision}")  # fmt: skip


def weight_bytes(config: TrainConfig) -> float:
    """Of all parameters, before the first step."""
    return float(_weights(config.model, sizes(config)["p"]).value)


def _average(config: TrainConfig) -> list[Figure]:
    """The moving average of the weights, where one is kept."""
    if not config.update.ema_decay:
        return []
    numbers = {"N": sum(one.size for one in trained_parameters(config)), "p": sizes(config)["p"]}
    return [figure("memory.average", "bytes", "N * p", numbers, note="of the trained weights, for RUN@ema")]


def _packed(config: TrainConfig, kernels: Kernels) -> list[Figure]:
    """Room for matrices in the layout of products: one of each size, and turned, since they are packed each time."""
    if not kernels.packed:
        return []
    turned = {(d_in, d_out) for d_out, d_in in kernels.packed}
    numbers: dict[str, Number | Figure] = {
        "entries": sum(packed_entries(*shape) for shape in kernels.packed | turned), "c": sizes(config)["c"]
    }  # fmt: skip
    return [figure("memory.packed", "bytes", "entries * c", numbers,
                   note="room for matrices as products read them, one of each size")]  # fmt: skip


def _saved(config: TrainConfig, kernels: Kernels, worst: Peak) -> list[Figure]:
    """Activations by operation, as many blocks' as are held at the peak."""
    numbers, saved = sizes(config), []
    for row in {row.name: row for row in rows(config, kernels)}.values():
        if held := worst.saved_bytes.get(row.name):
            blocks = int(held / evaluate(row.saved, numbers))
            name = row.name.replace(", ", "_").replace(" ", "_").replace(".", "_").replace("'", "")
            saved.append(figure(f"memory.saved.{name}", "bytes", f"blocks * ({row.saved})",
                                {**numbers, "blocks": blocks}, MEASURED))  # fmt: skip
    return saved


def _activations(saved: list[Figure]) -> Figure:
    if not saved:
        return figure("memory.activations", "bytes", "0", {}, note="memory is highest at the update")
    by_name = {one.name.rpartition(".")[2]: one for one in saved}
    return figure("memory.activations", "bytes", " + ".join(by_name), by_name)


def _workspace(worst: Peak, numbers: dict[str, Number]) -> Figure:
    row, new_gradients = worst.row, evaluate(worst.row.parameters, numbers) * numbers["c"]
    equation = f"{row.backward_workspace} + fresh" if row.backward_workspace != "0" else "fresh"
    return figure("memory.backward_workspace", "bytes", equation, {**numbers, "fresh": new_gradients}, MEASURED,
                  f"held only while the backward pass of {row.name} runs; fresh: the gradients it makes")  # fmt: skip
