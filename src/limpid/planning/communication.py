"""What devices send each other in a training step, and how long they wait for it beside the arithmetic."""

from __future__ import annotations

from dataclasses import dataclass

from limpid.planning.architecture import Architecture
from limpid.planning.cluster import Layout
from limpid.planning.figure import Figure, Number, figure, total
from limpid.planning.hardware import NETWORK, Device
from limpid.planning.number_formats import TRAINING_BYTES
from limpid.planning.options import Options

ZERO = "Rajbhandari et al. 2020, section 7, arXiv:1910.02054"
TENSOR = "Shoeybi et al. 2019, section 3, arXiv:1909.08053; Korthikanti et al. 2022, section 4.2.2, arXiv:2205.05198"
RING = "Liu et al. 2023, section 3, arXiv:2310.01889"
PIPELINE = "Narayanan et al. 2021, section 3.2, arXiv:2104.04473"
BACKWARD = "2 / 3"
"""Share of a micro-batch's arithmetic that is its backward pass."""


@dataclass(frozen=True)
class Links:
    """What one device sends at, each way."""

    inside: float
    """To others of its node, bytes/s."""
    between: float
    """To other nodes, bytes/s."""
    devices_per_node: int

    def of(self, neighbours: int) -> float:
        """Of a ring over so many neighbouring devices: it is as slow as its slowest link."""
        return self.inside if neighbours <= self.devices_per_node else self.between


def links_of(options: Options, device: Device | None) -> Links | None:
    """As the options say, else as the device's data sheet; None where neither knows what a node sends at."""
    inside = options.link or (device.link_bytes_per_second / 1e9 if device is not None else None)
    if inside is None:
        return None
    between = NETWORK if options.network is None else options.network
    return Links(inside * 1e9, between * 1e9, options.devices_per_node)


def figures(model: Architecture, layout: Layout, links: Links, parameters: Figure, working: Figure) -> list[Figure]:
    """Bytes that one device sends in a step, seconds that they take, and what of them the arithmetic does not hide.

    parameters  on one device, before ZeRO divides them
    working     seconds that the arithmetic of a step takes
    """
    sent = [*_data(layout, parameters), *_tensor(model, layout), *_context(model, layout), *_pipeline(model, layout)]
    if not sent:
        return []
    neighbours = {
        "data": layout.tensor * layout.replicas,
        "tensor": layout.tensor,
        "context": layout.tensor * layout.context_parallel,
        "pipeline": layout.devices,
    }
    seconds = [_seconds(one, links.of(neighbours[one.name.rpartition(".")[2]])) for one in sent]
    waited = [_waited(one, layout, working) for one in seconds]
    found = [*sent, *seconds, *waited]
    return [*found, total("communication.waited", [one for one in waited if one.value > 0] or waited[:1])]


def _data(layout: Layout, parameters: Figure) -> list[Figure]:
    """Gradients are added up over the replicas; under ZeRO 3 weights are gathered for each pass, too."""
    if layout.replicas == 1:
        return []
    stored = TRAINING_BYTES[layout.precision]
    numbers: dict[str, Number | Figure] = {"P": parameters, "d": layout.replicas, "g": stored.gradients,
                                           "w": stored.weights, "m": layout.micro_batches}  # fmt: skip
    equation, note = {
        0: ("2 * (d - 1) / d * P * g", "an all-reduce of the gradients, once a step"),
        3: ("m * (d - 1) / d * P * (2 * w + g)", "of each micro-batch: weights gathered twice, gradients scattered"),
    }.get(layout.zero, ("(d - 1) / d * P * (g + w)", "gradients scattered, weights gathered, once a step"))
    return [figure("communication.data", "bytes", equation, numbers, ZERO, note)]


def _tensor(model: Architecture, layout: Layout) -> list[Figure]:
    """Attention and MLP each end in a sum over the devices that share a matrix, forward and backward."""
    if layout.tensor == 1:
        return []
    numbers: dict[str, Number | Figure] = {
        "m": layout.micro_batches, "L": model.num_layers, "p": layout.pipeline, "t": layout.tensor, "b": layout.batch,
        "s": layout.positions_here, "h": model.d_model, "c": TRAINING_BYTES[layout.precision].activation,
        "sums": 6 if layout.recompute == "full" else 4,
    }  # fmt: skip
    equation = "m * ceil(L / p) * sums * 2 * (t - 1) / t * b * s * h * c"
    return [figure("communication.tensor", "bytes", equation, numbers, TENSOR,
                   "sums: two forward and two backward in a block, two more where it is recomputed")]  # fmt: skip


def _context(model: Architecture, layout: Layout) -> list[Figure]:
    """Keys and values of all positions pass every device, forward; they and their gradients once more, backward."""
    if layout.context_parallel == 1:
        return []
    numbers: dict[str, Number | Figure] = {
        "m": layout.micro_batches, "L": model.attention_layers, "p": layout.pipeline, "cp": layout.context_parallel,
        "b": layout.batch, "s": layout.positions_here, "kv": model.num_kv_heads * model.d_head, "t": layout.tensor,
        "c": TRAINING_BYTES[layout.precision].activation,
    }  # fmt: skip
    return [figure("communication.context", "bytes", "m * ceil(L / p) * 3 * (cp - 1) * 2 * b * s * kv * c / t", numbers,
                   RING, "3: forward once, backward twice")]  # fmt: skip


def _pipeline(model: Architecture, layout: Layout) -> list[Figure]:
    """A stage passes activations on and gradients back; with sequence parallelism each device its positions."""
    if layout.pipeline == 1:
        return []
    numbers: dict[str, Number | Figure] = {
        "m": layout.micro_batches, "v": layout.interleave, "b": layout.batch, "s": layout.positions_here,
        "h": model.d_model, "c": TRAINING_BYTES[layout.precision].activation, "t": layout.tensor,
    }  # fmt: skip
    return [figure("communication.pipeline", "bytes", "2 * m * v * b * s * h * c / t", numbers, PIPELINE,
                   "v: chunks of layers on a stage")]  # fmt: skip


def _seconds(sent: Figure, per_second: float) -> Figure:
    return figure(f"{sent.name}_time", "s", "bytes / per_second", {"bytes": sent, "per_second": per_second})


def _waited(seconds: Figure, layout: Layout, working: Figure) -> Figure:
    """Data parallel traffic runs beside the arithmetic that does not need it; the rest is waited for."""
    kind = seconds.name.rpartition(".")[2].removesuffix("_time")
    name = f"communication.{kind}_waited"
    numbers: dict[str, Number | Figure] = {"seconds": seconds, "working": working, "m": layout.micro_batches}
    if kind in ("tensor", "pipeline"):
        return figure(name, "s", "seconds", numbers, note="nothing else can be computed meanwhile")
    if kind == "context":
        return figure(name, "s", "max(0, seconds - working)", numbers, note="beside the attention to other positions")
    if layout.zero == 3:
        return figure(name, "s", "max(0, seconds - working)", numbers, note="beside the blocks before and after")
    return figure(name, "s", f"max(0, seconds - {BACKWARD} * working / m)", numbers,
                  note="beside the backward pass of the last micro-batch")  # fmt: skip
