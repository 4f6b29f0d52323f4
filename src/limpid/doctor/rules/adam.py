"""How Adam is set: β₁ and β₂, and an ε that is neither too large nor 0."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from limpid.doctor.finding import Finding
from limpid.doctor.rule import Probe, Rule, Threshold, before_first_step, on_step

if TYPE_CHECKING:
    from limpid.doctor.exam import Exam
    from limpid.doctor.history import History
    from limpid.doctor.step_record import StepRecord
    from limpid.doctor.watched import Watched

FAMILY = "adam"

BETAS_SWAPPED = Rule(
    "betas-swapped",
    FAMILY,
    detects="Adam's mean of gradients is slower than the scale it is divided by, as when β₁ and β₂ are exchanged.",
    equation=r"\beta_1^2 / \sqrt{\beta_2} < 1",
    source="Kingma & Ba 2014, theorem 4.1, arXiv:1412.6980",
    threshold="exact: the theorem's condition does not hold; from {first:g} and up to {second:g} it is the usual pair "
    "the wrong way round, which nobody means",
    thresholds={
        "first": Threshold(0.998, "a mean over 500 steps and more"),
        "second": Threshold(0.99, "beside a scale over 100 and fewer"),
    },
    cost="none",
    needs=(Probe.PARAMETERS,),
    cause="β₁ and β₂ were exchanged",
    meant="a slow direction over a fast scale, tried on purpose",
    refuted_by="β₁²/√β₂ below 1",
    explains=("loss-diverges", "loss-plateau", "learning-rate-too-high"),
)

EPSILON_DOMINATES = Rule(
    "epsilon-dominates",
    FAMILY,
    detects="Adam's ε is larger than the gradients it should only protect: the step is not adaptive any more.",
    equation=r"\mathrm{median}\; \varepsilon / (\sqrt{\hat v} + \varepsilon) > \tfrac12",
    source="Kingma & Ba 2014, algorithm 1, arXiv:1412.6980; Wortsman et al. 2023, section 3.4, arXiv:2309.14322",
    threshold="a share of ε above {share:g} in the majority of matrices, at {samples:g} sampled steps in a row; a "
    "fault where ε is {times:g} times √v̂, in more than {most:.0%} of them, which nobody means of an ε up to {usual:g} "
    "within {early:g} steps",
    thresholds={
        "share": Threshold(0.5, "ε is larger than √v̂ for half of the elements"),
        "samples": Threshold(3, "one batch may have small gradients"),
        "times": Threshold(10, "updates are a tenth of what they were meant to be"),
        "most": Threshold(0.8, "what is left does not carry the model"),
        "usual": Threshold(1e-7, "ε as it is against 0/0; a larger one is given to act"),
        "early": Threshold(100, "rows that are learned by heart leave gradients that small later on"),
    },
    cost="a slice of v per tensor on sampled steps; one backward pass before the first",
    needs=(Probe.BACKWARD, Probe.UPDATES),
    cause="eps is not small against the gradients",
    fix="eps 1e-8 … 1e-15, always below the gradient's RMS; and a loss that is a mean, not divided again",
    meant="a large eps that makes Adam nearly SGD (Inception, RL), rows learned to the last bit, or parts that wait "
    "for others to grow",
    refuted_by="a median of eps/(√v̂ + eps) below 0.5",
    explains=("update-not-as-predicted", "loss-plateau"),
)

EPSILON_IS_ZERO = Rule(
    "epsilon-rounds-to-zero",
    FAMILY,
    detects="Adam's ε is 0 in the format of the parameters: an element without gradient becomes 0/0.",
    equation=r"\mathrm{fl}(\varepsilon) = 0",
    source="IEEE 754-2019; optax#1754, keras#11860",
    threshold="exact: ε rounded to the parameters' format is 0",
    cost="one rounding per parameter group",
    needs=(Probe.PARAMETERS,),
    fix="keep float32 parameters and moments (autocast), or eps ≥ 1e-4 in half precision",
    explains=("not-finite", "loss-diverges", "updates-lost-to-rounding"),
)


@before_first_step(BETAS_SWAPPED)
def swapped(exam: Exam) -> Iterator[Finding]:
    for index, group in exam.groups:
        betas = group.get("betas")
        if "eps" not in group or not isinstance(betas, tuple | list) or len(betas) != 2:
            continue
        first, second = (float(beta) for beta in betas)
        if first**2 < math.sqrt(second):
            continue
        yield BETAS_SWAPPED.finding(
            severity="warning",
            where=f"parameter group {index}",
            says=f"betas = ({first:g}, {second:g}): β₁²/√β₂ = {first**2 / math.sqrt(max(second, 1e-30)):.2f}, below 1 "
            "is required; the mean of the gradient is slower than the scale it is divided by, so that old gradients "
            "are divided by the size of new ones.",
            fix=f"betas=({second:g}, {first:g})",
            meant=None if first >= BETAS_SWAPPED["first"] and second <= BETAS_SWAPPED["second"] else "",
            evidence={"beta1": first, "beta2": second},
        )
        return


@before_first_step(EPSILON_DOMINATES)
def will_dominate(exam: Exam) -> Iterator[Finding]:
    """Predicted from one backward pass: √v̂ of the first step is the gradient itself."""
    norms = {} if exam.call is not None or exam.trial is None else exam.trial.norms
    shares = []  # of each matrix: share of ε, its name, RMS of its gradient
    for _, group in exam.groups if norms else ():
        if "betas" not in group or not isinstance(group.get("eps"), float):
            continue
        for parameter in group["params"]:
            name = exam.info.names.get(id(parameter), "")
            norm = norms.get(name)
            if parameter.ndim >= 2 and norm:
                size = norm / math.sqrt(parameter.numel())
                shares.append((group["eps"] / (size + group["eps"]), name, size))
    over = [entry for entry in shares if entry[0] > EPSILON_DOMINATES["share"]]
    if shares and len(over) > len(shares) / 2:
        _, name, size = max(over, key=lambda entry: entry[0])
        eps = max(float(group.get("eps") or 0) for _, group in exam.groups)
        yield _dominates(len(over), len(shares), eps, size, name, None, exam.scale)


@on_step(EPSILON_DOMINATES, asks="judged_update")
def dominates(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    rule, update = EPSILON_DOMINATES, record.judged_update
    if update is None or record.has_no_gradient:
        return
    known = [i for i in update.matrices() if not math.isnan(update.eps_share[i])]
    over = [i for i in known if update.eps_share[i] > rule["share"]]
    if history.in_a_row(rule.slug, bool(known) and len(over) > len(known) / 2) >= rule["samples"]:
        worst = max(over, key=lambda i: update.eps_share[i])
        root = update.root_v[worst]
        eps = max(float(group.get("eps") or 0) for _, group in watched.groups)
        yield _dominates(len(over), len(known), eps, root, update.names[worst], record.number)


def _dominates(
    over: int, matrices: int, eps: float, size: float, where: str, step: int | None, scale: float = 1.0
) -> Finding:
    rule = EPSILON_DOMINATES
    nothing_left = over > rule["most"] * matrices and eps > rule["times"] * size
    return rule.finding(
        severity="fault" if nothing_left else "warning",
        step=step,
        where=where,
        says=f"in {over} of {matrices} matrices eps = {eps:g} exceeds √v̂ (about {size:.1e} in {where}): Adam behaves "
        f"like SGD with rate lr/eps, and updates are {eps / max(size, 1e-30):,.0f} times smaller than intended.",
        cause=rule.cause + (" (which shrink with the loss's factor)" if eps <= 1e-5 else ""),
        meant=None if nothing_left and eps <= rule["usual"] and (step or 0) <= rule["early"] else "",
        sure=0.95,
        evidence={"matrices_over": over, "matrices": matrices, "eps": eps, "gradient_rms": size, "loss_scale": scale},
    )


@before_first_step(EPSILON_IS_ZERO)
def rounds_to_zero(exam: Exam) -> Iterator[Finding]:
    import torch

    plain = {id(g) for o in exam.optimizers if type(o).__module__.startswith("torch.optim") for g in o.param_groups}
    for index, group in exam.groups:
        eps = group.get("eps")
        if not isinstance(eps, float) or eps <= 0:
            continue
        in_format = id(group) in plain and not group.get("fused")
        for kind in {p.dtype for p in group["params"] if p.is_floating_point()}:
            if float(torch.tensor(eps).to(kind)) == 0:
                smallest = torch.finfo(kind).smallest_normal * torch.finfo(kind).eps
                name = str(kind).removeprefix("torch.")
                yield EPSILON_IS_ZERO.finding(
                    severity="fault",
                    where=f"parameter group {index}",
                    says=f"eps = {eps:g} is 0 in {name} (smallest number {smallest:.2g}): a parameter whose gradient "
                    "is 0 becomes 0/0 at the first update.",
                    cause=f"the optimizer works in {name}, the format of the parameters",
                    meant=None if in_format else "an optimizer that computes in float32 whatever its parameters are",
                    refuted_by=f"a {name} value of eps other than 0",
                    evidence={"eps": eps, "smallest": smallest},
                )
