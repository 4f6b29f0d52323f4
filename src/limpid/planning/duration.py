"""How long training takes on its devices, what they wait for, and how well a run used its machine."""

from __future__ import annotations

from collections.abc import Iterator

from limpid.planning import communication, flops, hardware, time
from limpid.planning.architecture import Architecture
from limpid.planning.cluster import Layout
from limpid.planning.figure import Figure, given, shown
from limpid.planning.memory import stage_parameters
from limpid.planning.memory_model import layout_of, recomputation
from limpid.planning.options import Options
from limpid.planning.subject import Subject


def durations(
    subject: Subject, options: Options, context: int, device: hardware.Device | None, notes: list[str]
) -> dict[str, list[Figure]]:
    """How long, and what it costs; how well a run used the machine."""
    model = subject.architecture
    step = next(one for one in flops.figures(model, context) if one.name == "flops.step")
    precision = options.precision or ("bf16" if subject.config is None else subject.config.run.precision)
    if options.flops is not None:
        rate = given("time.peak", options.flops, "FLOP/s", note="as given, or measured here")
    elif device is not None:
        rate = hardware.peak_of(device, precision)
    else:
        return {}
    figures: list[Figure] = []
    utilisation = options.utilisation or time.UTILISATION
    if subject.speed is not None and device is None:
        figures.append(given("time.measured_speed", subject.speed, "tokens/s", note="median of the run's steps"))
        measured = _measured_utilisation(subject, float(rate.value))
        if measured[0].value > 1:
            notes.append(
                f"no utilisation is given: at {subject.speed:,.0f} tokens/s the run took {measured[0].value:.2f} × the "
                f"{rate.value:.3g} FLOP/s that were measured as the peak, so something else kept the machine busy then"
            )
            return {"time": figures}
        figures.append(measured[0])
        utilisation = options.utilisation or measured[1]
    tokens, layout = options.tokens or tokens_of(subject), layout_of(subject, options, context)
    repeated = flops.recomputed(model, context, recomputation(subject, options), options.attention)
    work = time.Work(step, repeated, layout, tokens, options.step_spread)
    sent, steps = _on_devices(model, work, rate, utilisation, options, device, notes)
    if tokens:
        money = time.time_and_money(work, rate, utilisation, options.price, steps)
        figures += [*money[:1], rate, *steps, *money[1:]]
    elif steps:
        figures += [rate, *steps]
    sections = {"communication": sent} if sent else {}
    return {**sections, "time": figures} if figures else sections


def _on_devices(
    model: Architecture, work: time.Work, rate: Figure, utilisation: float, options: Options,
    device: hardware.Device | None, notes: list[str],
) -> tuple[list[Figure], list[Figure]]:  # fmt: skip
    """Of several devices: what they send each other in a step, where their links are known, and how long it takes."""
    layout = work.layout
    if layout.devices == 1:
        return [], []
    busy, sent = time.working(work, rate, utilisation), []
    links = communication.links_of(options, device)
    if links is not None:
        sent = communication.figures(model, layout, links, stage_parameters(model, layout), busy)
    waited = sent[-1] if sent else None
    steps = time.step(work, busy, waited)
    notes += _bottlenecks(layout, busy, waited)
    return sent, steps


def _bottlenecks(layout: Layout, busy: Figure, waited: Figure | None) -> Iterator[str]:
    """What makes the devices wait, and what would lessen it."""
    stages, count = layout.pipeline, layout.micro_batches
    if stages > 1 and count < stages:
        yield (
            f"a pipeline of {stages} stages waits while {count} micro-batches pass: "
            f"--gradient-accumulation-steps {8 * stages} would cut its idle time to about an eighth"
        )
    if waited is not None and waited.value > busy.value / 4:
        yield (
            f"devices wait {shown(waited.value, 's')} of each step for what others send, beside "
            f"{shown(busy.value, 's')} of work: a larger --batch-size sends less per token"
        )


def _measured_utilisation(subject: Subject, rate: float) -> tuple[Figure, float]:
    """Of a run: the model's own FLOPs over the peak, and the same with what its backward pass repeated."""
    context = subject.architecture.context_length
    step = next(one for one in flops.figures(subject.architecture, context) if one.name == "flops.step")
    own = time.utilisation_of(float(step.value), subject.speed or 0.0, 1, rate, "time.measured_mfu")
    repeated = flops.recomputed(subject.architecture, context, recomputation(subject, Options()), "fused")
    return own, min(1.0, own.value * (1 + (repeated.value / step.value if repeated else 0)))


def tokens_of(subject: Subject) -> float | None:
    """Tokens that the configuration trains on."""
    if subject.config is None:
        return None
    run = subject.config.run
    return float(run.max_steps * run.batch_size * run.gradient_accumulation_steps * subject.config.model.context_length)
