"""Compute-optimal training under published laws: the best partner of a number, and how far a run is from the best."""

from __future__ import annotations

from limpid.errors import ConfigError
from limpid.planning.figure import Figure, figure, given
from limpid.planning.laws.scaling import APPROACH_3, LAWS, REFIT, SIX_N_D, Law, PowerLaw
from limpid.planning.number_formats import require_addressable

LOSS = "E + A / N ** alpha + B / D ** beta"


def compute_optimal(compute: float | None, parameters: float | None, tokens: float | None) -> list[Figure]:
    """Of one number its best partners under every law; of parameters and tokens how far they are from the best.

    Raises  ConfigError for compute beside another number, and for a number that is not above 0
    """
    for name, value in (("compute", compute), ("params", parameters), ("tokens", tokens)):
        if value is not None and not 0 < value < float("inf"):
            raise ConfigError(f"--{name} is {value}: it must be above 0")
    if compute is not None and (parameters is not None or tokens is not None):
        raise ConfigError("--compute with --params or --tokens leaves no choice: C = 6 N D fixes the third")
    if parameters is not None:
        require_addressable(parameters, "the model")
    if parameters is not None and tokens is not None:
        return judgements(parameters, tokens)
    return [one for law in LAWS for one in allocate(law, compute, parameters, tokens)]


def judgements(parameters: float, tokens: float) -> list[Figure]:
    """How far a run is from compute-optimal under both laws that predict a loss."""
    return judge(REFIT, parameters, tokens) + judge(APPROACH_3, parameters, tokens)[1:]


def figure_prefix(law: Law | PowerLaw) -> str:
    """What names of figures under a law begin with: scaling.approach_1, scaling.refit."""
    return f"scaling.{law.name.split(', ')[1].replace(' ', '_').replace('-', '')}"


def allocate(
    law: Law | PowerLaw, compute: float | None = None, parameters: float | None = None, tokens: float | None = None
) -> list[Figure]:
    """The compute-optimal partner of whichever of the three is given, under one law."""
    name = figure_prefix(law)
    if isinstance(law, Law):
        numbers = {**law.constants, "G": law.ratio, "a": law.exponent}
        forms = ("G * (C / 6) ** a", "6 * (N / G) ** (1 / a)", "6 * (D * G) ** (1 / (1 - a))")
        note = "G = (α A / β B)^(1/(α+β)), a = β/(α+β)"
    else:
        numbers = {"k": law.k, "a": law.a}
        forms = ("k * C ** a", "(N / k) ** (1 / a)", "(6 * D * k) ** (1 / (1 - a))")
        note = "k and a: the line through the logarithms of the published table"
    if compute is not None:
        c = given(f"{name}.compute", compute, "FLOP")
    elif parameters is not None:
        c = figure(f"{name}.compute", "FLOP", forms[1], {**numbers, "N": parameters}, law.source, note)
    else:
        c = figure(f"{name}.compute", "FLOP", forms[2], {**numbers, "D": tokens or 0.0}, law.source, note)
    n = figure(f"{name}.parameters", "parameters", forms[0], {**numbers, "C": c}, law.source, note)
    require_addressable(float(n.value), f"the best model for {c.value:.3g} FLOPs")
    d = figure(f"{name}.tokens", "tokens", "C / (6 * N)", {"C": c, "N": n}, SIX_N_D)
    figures = [c, n, d, figure(f"{name}.tokens_per_parameter", "", "D / N", {"D": d, "N": n})]
    if isinstance(law, Law):
        figures.append(figure(f"{name}.loss", "nats/token", LOSS, {**law.constants, "N": n, "D": d}, law.source))
    return figures


def judge(law: Law, parameters: float, tokens: float) -> list[Figure]:
    """How far a run lies from the best use of its compute: how under- or over-trained it is, and what that loses."""
    name = figure_prefix(law)
    source, c = law.source, figure("scaling.compute", "FLOP", "6 * N * D", {"N": parameters, "D": tokens}, SIX_N_D)
    best = {one.name.rpartition(".")[2]: one for one in allocate(law, compute=float(c.value))}
    own = {one.name.rpartition(".")[2]: one for one in allocate(law, parameters=parameters)}
    best_n = best["parameters"]
    loss = figure(f"{name}.loss", "nats/token", LOSS, {**law.constants, "N": parameters, "D": tokens}, source)
    return [
        c,
        loss,
        figure(f"{name}.best_parameters", "parameters", best_n.equation, best_n.numbers, source),
        figure(f"{name}.best_tokens", "tokens", "C / (6 * N)", {"C": c, "N": best_n}, SIX_N_D),
        figure(f"{name}.best_loss", "nats/token", LOSS, best["loss"].numbers, source),
        figure(f"{name}.loss_lost", "nats/token", "loss - best_loss", {"loss": loss, "best_loss": best["loss"]},
               note="against the best size for the same compute"),
        figure(f"{name}.training", "", "D / D_best", {"D": tokens, "D_best": own["tokens"]},
               note="tokens over those for which this size is the best one: below 1 under-trained, above over-trained"),
    ]  # fmt: skip
