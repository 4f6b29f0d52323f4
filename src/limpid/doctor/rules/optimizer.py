"""What the optimizer holds and how it is set: membership, decay, ε, β."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from limpid.doctor.finding import Finding, Severity
from limpid.doctor.rule import Probe, Rule, Threshold, before_first_step, on_step

if TYPE_CHECKING:
    from torch import Tensor

    from limpid.doctor.exam import Exam
    from limpid.doctor.step_record import History, StepRecord
    from limpid.doctor.watched import Watched

FAMILY = "optimizer"

OPTIMIZER_HOLDS_STRANGERS = Rule(
    "optimizer-holds-strangers",
    FAMILY,
    detects="The optimizer holds parameters that are not the model's: replaced, copied or reloaded since.",
    equation=r"\bigcup \text{groups} \setminus \{p\} \neq \emptyset",
    source="definition; identity of tensors",
    threshold="exact: identity, and a place in the model whose tensor of that shape the optimizer lacks",
    cost="none",
    needs=(Probe.PARAMETERS,),
    cause="modules were replaced, copied or reloaded after the optimizer was built",
    fix="build the optimizer last, from the final model's parameters()",
    refuted_by="the same identity of tensor in model.parameters() and in param_groups",
    explains=(
        "parameters-not-in-optimizer",
        "weights-never-change",
        "loss-plateau",
        "step-without-gradients",
        "gradients-not-cleared",
    ),
)

NOT_IN_OPTIMIZER = Rule(
    "parameters-not-in-optimizer",
    FAMILY,
    detects="Parameters that get gradients but are in no parameter group: they never change.",
    equation=r"\{p : \text{requires grad}\} \setminus \bigcup \text{groups} \neq \emptyset",
    source="definition; identity of tensors",
    threshold="exact: identity",
    cost="none",
    needs=(Probe.PARAMETERS,),
    cause="parameter groups were built from some modules only, or a module was added after the optimizer",
    fix="build the groups from model.named_parameters(), and assert that they cover it; freeze what should not train "
    "with requires_grad_(False)",
    refuted_by="these tensors in a param_group",
    explains=("weights-never-change", "loss-plateau"),
)

IN_TWO_GROUPS = Rule(
    "parameter-in-two-groups",
    FAMILY,
    detects="One parameter in two groups or twice in one: it is updated twice per step.",
    equation=r"\sum_g \mathbb 1[p \in g] > 1",
    source="definition; identity of tensors",
    threshold="exact: identity",
    cost="none",
    needs=(Probe.PARAMETERS,),
    cause="groups overlap",
    fix="build each group from names that no other group has",
    refuted_by="one group per tensor",
)

BETAS_SWAPPED = Rule(
    "betas-swapped",
    FAMILY,
    detects="Adam's β₁ and β₂ the wrong way round: the mean is slower than the scale it is divided by.",
    equation=r"\beta_1^2 / \sqrt{\beta_2} < 1",
    source="Kingma & Ba 2014, theorem 4.1, arXiv:1412.6980",
    threshold="exact: the theorem's condition does not hold",
    cost="none",
    needs=(Probe.PARAMETERS,),
    cause="β₁ and β₂ were exchanged",
    refuted_by="β₁²/√β₂ below 1",
    explains=("loss-diverges", "loss-plateau", "learning-rate-too-high"),
)

DECAY_TOO_STRONG = Rule(
    "decay-too-strong",
    FAMILY,
    detects="Weight decay that forgets a weight faster than it can be learned.",
    equation=r"1 / (\eta \lambda) \;\text{steps}",
    source="Loshchilov & Hutter 2017, algorithm 2, arXiv:1711.05101; Wang & Aitchison 2024, arXiv:2405.13698",
    threshold="rate times decay above {warning:g}, a fault from {fault:g} on",
    thresholds={
        "warning": Threshold(0.05, "a weight without gradient falls to 1/e in 20 steps; usual are hundreds and more"),
        "fault": Threshold(0.2, "in 5 steps"),
    },
    cost="none",
    needs=(Probe.PARAMETERS,),
    cause="a weight decay meant for another rate, or for a decay that is not multiplied by it",
    fix="weight_decay 0.1 or less at rates near 1e-3: a timescale of thousands of steps",
    refuted_by="rate times decay below 0.05",
    explains=("loss-plateau", "decay-on-gains", "loss-diverges"),
)

DECAY_ON_GAINS = Rule(
    "decay-on-gains",
    FAMILY,
    detects="Weight decay on gains, biases or embeddings: they shrink towards 0 for no reason.",
    equation=r"\gamma_{\text{end}} = \gamma_0 \exp(-\textstyle\sum_t \eta_t \lambda)",
    source="Loshchilov & Hutter 2017, algorithm 2, arXiv:1711.05101; minGPT#23",
    threshold="gains and biases multiplied by less than {warning:g} at the end of the schedule, or so far; a fault "
    "below {fault:g}; a notice otherwise, or when the schedule's end is not known",
    thresholds={
        "warning": Threshold(0.9, "a tenth off the output of every norm"),
        "fault": Threshold(0.5, "half of it"),
    },
    cost="one simulation of the schedule",
    needs=(Probe.PARAMETERS, Probe.SCHEDULE, Probe.EVENTS),
    cause="one parameter group with weight decay holds tensors of every kind",
    fix="two groups: weight decay for matrices, none for tensors with fewer than 2 dimensions and for embeddings",
    refuted_by="weight_decay 0 in their group",
)

EPSILON_DOMINATES = Rule(
    "epsilon-dominates",
    FAMILY,
    detects="Adam's ε is larger than the gradients it should only protect: the step is not adaptive any more.",
    equation=r"\mathrm{median}\; \varepsilon / (\sqrt{\hat v} + \varepsilon) > \tfrac12",
    source="Kingma & Ba 2014, algorithm 1, arXiv:1412.6980; Wortsman et al. 2023, section 3.4, arXiv:2309.14322",
    threshold="a share of ε above {share:g} in the majority of matrices, at {samples:g} sampled steps in a row; a "
    "fault where ε is {times:g} times √v̂, in more than {most:.0%} of them",
    thresholds={
        "share": Threshold(0.5, "ε is larger than √v̂ for half of the elements"),
        "samples": Threshold(3, "one batch may have small gradients"),
        "times": Threshold(10, "updates are a tenth of what they were meant to be"),
        "most": Threshold(0.8, "what is left does not carry the model"),
    },
    cost="a slice of v per tensor on sampled steps; one backward pass before the first",
    needs=(Probe.BACKWARD, Probe.UPDATES),
    cause="eps is not small against the gradients",
    fix="eps 1e-8 … 1e-15, always below the gradient's RMS; and a loss that is a mean, not divided again",
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


@before_first_step(OPTIMIZER_HOLDS_STRANGERS, NOT_IN_OPTIMIZER)
def membership(exam: Exam) -> Iterator[Finding]:
    """Every trainable parameter, and nothing else."""
    if not exam.optimizers:
        return
    missing, strangers = _missing(exam), _strangers(exam)
    shapes = {parameter.shape for parameter in strangers}
    replaced = [name for name, parameter in missing if parameter.shape in shapes]
    nothing_of_ours = not any(id(parameter) in exam.info.names for parameter in exam.held)
    if strangers and (replaced or nothing_of_ours):
        yield _holds_strangers(strangers, replaced)
        missing = [(name, parameter) for name, parameter in missing if name not in replaced]
    if missing:
        size = sum(parameter.numel() for _, parameter in missing)
        shown = ", ".join(name for name, _ in missing[:4]) + (" and more" if len(missing) > 4 else "")
        yield NOT_IN_OPTIMIZER.finding(
            severity="fault",
            where=missing[0][0],
            says=f"{shown} ({size:,} parameters, {size / exam.info.size:.0%} of the model) are trainable but in no "
            "parameter group: they will never change.",
            evidence={"tensors": len(missing), "parameters": size, "names": [name for name, _ in missing[:32]]},
        )


def _missing(exam: Exam) -> list[tuple[str, Tensor]]:
    """Trainable parameters that no group holds, neither themselves nor through a flat view."""
    ids, storages = {id(p) for p in exam.held}, {exam.info.storage(p) for p in exam.held}
    return [
        (name, p)
        for name, p in exam.info.parameters.items()
        if p.requires_grad and id(p) not in ids and exam.info.storage(p) not in storages
    ]


def _strangers(exam: Exam) -> list[Tensor]:
    """Tensors of the optimizer that are not the model's, nor a view of one."""
    storages = {exam.info.storage(p) for p in exam.info.parameters.values()}
    return [p for p in exam.held if id(p) not in exam.info.names and exam.info.storage(p) not in storages]


def _holds_strangers(strangers: list[Tensor], replaced: list[str]) -> Finding:
    size = sum(parameter.numel() for parameter in strangers)
    return OPTIMIZER_HOLDS_STRANGERS.finding(
        severity="fault",
        where=", ".join(replaced[:4]) or "all parameters",
        says=f"{len(strangers)} tensors in the optimizer ({size:,} parameters) are not the model's: "
        f"{', '.join(replaced[:3]) or 'all of them'}{' and more' if len(replaced) > 3 else ''} "
        f"{'was' if len(replaced) == 1 else 'were'} replaced after the optimizer was created, and will never change.",
        evidence={"strangers": len(strangers), "parameters": size, "replaced": len(replaced)},
    )


@before_first_step(IN_TWO_GROUPS)
def twice(exam: Exam) -> Iterator[Finding]:
    seen: set[int] = set()
    doubled: dict[int, None] = {}
    for parameter in exam.held:
        if id(parameter) in seen:
            doubled[id(parameter)] = None
        seen.add(id(parameter))
    if doubled:
        names = [exam.info.names.get(key, "?") for key in doubled]
        yield IN_TWO_GROUPS.finding(
            severity="fault",
            where=names[0],
            says=f"{len(names)} parameters are held more than once ({', '.join(names[:4])}): each step updates them "
            "twice.",
            evidence={"tensors": len(names)},
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
            evidence={"beta1": first, "beta2": second},
        )
        return


@before_first_step(DECAY_TOO_STRONG)
def forgets(exam: Exam) -> Iterator[Finding]:
    """Decoupled decay against the rate: how soon a weight without gradient is gone."""
    decoupled = [
        group
        for optimizer in exam.optimizers
        for group in optimizer.param_groups
        if type(optimizer).__name__ in ("AdamW", "Muon", "SGD", "Lion") or group.get("decoupled_weight_decay")
    ]
    products = [
        float(group.get("initial_lr") or group["lr"]) * float(group.get("weight_decay") or 0) for group in decoupled
    ]
    strongest = max(products, default=0.0)
    if strongest > DECAY_TOO_STRONG["warning"]:
        yield DECAY_TOO_STRONG.finding(
            severity="warning" if strongest < DECAY_TOO_STRONG["fault"] else "fault",
            where="weight decay",
            says=f"rate times decay is {strongest:.2g}: each step takes that share of every weight away, and after "
            f"{1 / strongest:.0f} steps 1/e is left of what was learned.",
            sure=0.9,
            evidence={"rate_times_decay": strongest},
        )


@before_first_step(DECAY_ON_GAINS)
def will_shrink(exam: Exam) -> Iterator[Finding]:
    gains: list[str] = []
    tables: list[str] = []
    rate, decay = 0.0, 0.0
    for group, parameter, name in exam.decayed:
        if parameter.ndim >= 2 and name not in exam.info.embedding_names:
            continue
        (gains if parameter.ndim < 2 else tables).append(name)
        rate, decay = max(rate, float(group["lr"])), max(decay, float(group["weight_decay"]))
    if gains or tables:
        rates = exam.rates or ([rate] * exam.planned if exam.planned else None)
        yield _decays(gains, tables, decay, math.exp(-decay * sum(rates)) if rates else None, None)


@on_step(DECAY_ON_GAINS)
def has_shrunk(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    vectors = [(group, name) for group, parameter, name in watched.decayed if parameter.ndim < 2]
    if not record.has_rates or not vectors:
        return
    decay = max(float(group["weight_decay"]) for group, _ in vectors)
    history.decay_done += decay * history.rates[-1]
    factor = math.exp(-history.decay_done)
    if factor < DECAY_ON_GAINS["warning"] and (record.number % 50 == 0 or history.decay_done > 0.2):
        yield _decays([name for _, name in vectors], [], decay, factor, record.number)


def _decays(gains: list[str], tables: list[str], decay: float, factor: float | None, step: int | None) -> Finding:
    """Its severity is what decay will have done to gains."""
    severity: Severity = "notice"
    if gains and factor is not None and factor < DECAY_ON_GAINS["warning"]:
        severity = "fault" if factor < DECAY_ON_GAINS["fault"] else "warning"
    several = "s" if len(tables) > 1 else ""
    what = f"{len(gains)} gains and biases" if gains else f"{len(tables)} embedding table{several}"
    when = "this schedule" if step is None else f"until step {step} it"
    effect = f"{when} multiplies them by {factor:.2f}" if factor is not None else ""
    return DECAY_ON_GAINS.finding(
        severity=severity,
        step=step,
        where=(gains or tables)[0],
        says=f"weight decay {decay:g} is applied to {what}: "
        f"{effect or 'how far it shrinks them depends on the steps to come'}.",
        evidence={"gains": len(gains), "embeddings": len(tables), "decay": decay, "factor": factor},
    )


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


@on_step(EPSILON_DOMINATES)
def dominates(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    rule, update = EPSILON_DOMINATES, record.judged_update
    if update is None:
        return
    known = [i for i in update.matrices() if not math.isnan(update.eps_share[i])]
    over = [i for i in known if update.eps_share[i] > rule["share"]]
    if history.in_a_row(rule.slug, bool(known) and len(over) > len(known) / 2) >= rule["samples"]:
        worst = max(over, key=lambda i: update.eps_share[i])
        root, share = update.root_v[worst], update.eps_share[worst]
        eps = share / max(1 - share, 1e-12) * root if root > 0 else math.nan
        yield _dominates(len(over), len(known), eps, root, update.names[worst], record.number)


def _dominates(
    over: int, matrices: int, eps: float, size: float, where: str, step: int | None, scale: float = 1.0
) -> Finding:
    rule = EPSILON_DOMINATES
    return rule.finding(
        severity="fault" if over > rule["most"] * matrices and eps > rule["times"] * size else "warning",
        step=step,
        where=where,
        says=f"in {over} of {matrices} matrices eps = {eps:g} exceeds √v̂ (about {size:.1e} in {where}): Adam behaves "
        f"like SGD with rate lr/eps, and updates are {eps / max(size, 1e-30):,.0f} times smaller than intended.",
        cause=rule.cause + (" (which shrink with the loss's factor)" if eps <= 1e-5 else ""),
        sure=0.95,
        evidence={"matrices_over": over, "matrices": matrices, "eps": eps, "gradient_rms": size, "loss_scale": scale},
    )


@before_first_step(EPSILON_IS_ZERO)
def rounds_to_zero(exam: Exam) -> Iterator[Finding]:
    import torch

    for index, group in exam.groups:
        eps = group.get("eps")
        if not isinstance(eps, float) or eps <= 0:
            continue
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
                    refuted_by=f"a {name} value of eps other than 0",
                    evidence={"eps": eps, "smallest": smallest},
                )
