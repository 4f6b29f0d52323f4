"""What the optimizer holds."""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter
from typing import TYPE_CHECKING

from limpid.doctor.finding import Finding
from limpid.doctor.rule import Probe, Rule, Threshold, before_first_step, on_step
from limpid.doctor.weights import storage

if TYPE_CHECKING:
    from torch import Tensor

    from limpid.doctor.exam import Exam
    from limpid.doctor.history import History
    from limpid.doctor.step_record import StepRecord
    from limpid.doctor.watched import Watched

FAMILY = "optimizer"
BESIDE = "weights that are kept beside the model, as for functional_call, or as what its own are rounded from"
HIDDEN = "a model that is kept out of parameters() on purpose, in a list of one or past the register"

OPTIMIZER_HOLDS_STRANGERS = Rule(
    "optimizer-holds-strangers",
    FAMILY,
    detects="The optimizer holds parameters that are not the model's: replaced, copied or reloaded since.",
    equation=r"\bigcup \text{groups} \setminus \{p\} \neq \emptyset",
    source="definition; identity of tensors",
    threshold="exact: identity, and a place in the model whose tensor of that shape the optimizer lacks; a notice "
    "where they are, to the bit, the model's weights before a rounding to half precision",
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

MADE_ANEW = Rule(
    "optimizer-made-anew",
    FAMILY,
    detects="An optimizer that is made again and again: moments and step count begin at 0 each time.",
    equation=r"m_t = v_t = 0 \;\text{at}\; t > 1",
    source="definition; Kingma & Ba 2014, section 3, arXiv:1412.6980 (bias correction is of the first steps)",
    threshold="{times:g} optimizers or more that nobody gave to the doctor, one after the other, update parameters of "
    "the one that it watches, which has made updates and makes none any more; more than that where it never made one",
    thresholds={"times": Threshold(2, "to change the optimizer once is a method of training")},
    cost="a hook on every optimizer's update",
    meant="an optimizer made anew for each task, stage or round",
    needs=(Probe.EVENTS, Probe.PARAMETERS),
    cause="optimizer = AdamW(…) inside the loop over epochs",
    fix="make the optimizer once, before the loop",
    refuted_by="updates by the optimizer that was given to limpid.watch",
    explains=("loss-plateau", "loss-spike", "gradients-not-cleared"),
)

NOT_IN_OPTIMIZER = Rule(
    "parameters-not-in-optimizer",
    FAMILY,
    detects="Parameters that get gradients but are in no parameter group: they never change.",
    equation=r"\{p : \text{requires grad}\} \setminus \bigcup \text{groups} \neq \emptyset",
    source="definition; identity of tensors",
    threshold="exact: identity; not of what another optimizer of this process holds",
    cost="none; where something is missing, one walk over the objects of this process",
    meant="parts kept as they are by leaving them out: a frozen body, random features, a fixed head",
    needs=(Probe.PARAMETERS,),
    again=True,
    cause="parameter groups were built from some modules only, or a module was added after the optimizer",
    fix="build the groups from model.named_parameters(), and assert that they cover it; freeze what should not train "
    "with requires_grad_(False)",
    refuted_by="these tensors in a param_group",
    explains=("weights-never-change", "loss-plateau"),
)

NOT_REGISTERED = Rule(
    "parameters-not-registered",
    FAMILY,
    detects="Parameters that get a gradient, and that neither the model nor any optimizer knows: they never change.",
    equation=r"\{p : \partial L / \partial p \text{ is computed}\} \setminus \text{parameters()} \neq \emptyset",
    source="definition; the graph of the loss",
    threshold="exact: leaves of the loss's graph that are parameters, are held by no optimizer of this process, and "
    "have the same values at {steps:g} steps",
    thresholds={"steps": Threshold(3, "who updates them by hand has done so by then")},
    cost="one walk over the graph of the loss at the first three steps",
    needs=(Probe.GRAPH,),
    cause="modules in a Python list or dict, which parameters() does not see",
    fix="nn.ModuleList or nn.ParameterList; then make the optimizer",
    refuted_by="these tensors in model.parameters()",
    explains=("loss-plateau", "loss-never-falls"),
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


@before_first_step(OPTIMIZER_HOLDS_STRANGERS, NOT_IN_OPTIMIZER)
def membership(exam: Exam) -> Iterator[Finding]:
    """Every trainable parameter, and nothing else."""
    from limpid.doctor.other_optimizers import held_by, other_optimizers

    if not exam.optimizers:
        return
    missing, strangers = _missing(exam), _strangers(exam)
    if strangers and len(exam.masters) == len(strangers):
        yield _holds_masters(strangers)
        return
    if missing:  # what another optimizer holds is that one's to train
        others = held_by(other_optimizers(exam.optimizers))
        missing = [(name, parameter) for name, parameter in missing if id(parameter) not in others]
    shapes = {parameter.shape for parameter in strangers}
    replaced = [name for name, parameter in missing if parameter.shape in shapes]
    nothing_of_ours = not any(id(parameter) in exam.info.names for parameter in exam.held)
    if strangers and (replaced or nothing_of_ours):
        yield _holds_strangers(strangers, replaced, BESIDE if nothing_of_ours else None)
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
    ids, storages = {id(p) for p in exam.held}, {storage(p) for p in exam.held}
    return [
        (name, p)
        for name, p in exam.info.parameters.items()
        if p.requires_grad and id(p) not in ids and storage(p) not in storages
    ]


def _strangers(exam: Exam) -> list[Tensor]:
    """Tensors of the optimizer that are not the model's, nor a view of one."""
    storages = {storage(p) for p in exam.info.parameters.values()}
    return [p for p in exam.held if id(p) not in exam.info.names and storage(p) not in storages]


def _holds_masters(strangers: list[Tensor]) -> Finding:
    size = sum(parameter.numel() for parameter in strangers)
    return OPTIMIZER_HOLDS_STRANGERS.finding(
        severity="notice",
        where="all parameters",
        says=f"{len(strangers)} tensors in the optimizer ({size:,} parameters) are copies of the model's at higher "
        "precision: its weights are these, rounded.",
        cause="masters of half-precision weights, it seems: gradients are copied to them, and weights back",
        fix="nothing, if both are copied at each step",
        sure=0.6,
        refuted_by="weights that no longer change",
        evidence={"masters": len(strangers), "parameters": size},
    )


def _holds_strangers(strangers: list[Tensor], replaced: list[str], meant: str | None) -> Finding:
    size = sum(parameter.numel() for parameter in strangers)
    return OPTIMIZER_HOLDS_STRANGERS.finding(
        severity="fault",
        where=", ".join(replaced[:4]) or "all parameters",
        says=f"{len(strangers)} tensors in the optimizer ({size:,} parameters) are not the model's: "
        f"{', '.join(replaced[:3]) or 'all of them'}{' and more' if len(replaced) > 3 else ''} "
        f"{'was' if len(replaced) == 1 else 'were'} replaced after the optimizer was created, and will never change.",
        meant=meant,
        evidence={"strangers": len(strangers), "parameters": size, "replaced": len(replaced)},
    )


@on_step(NOT_REGISTERED, asks="other_leaves")
def not_registered(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    """Leaves of the loss that are not the model's: another player's, or nobody's."""
    from limpid.doctor.graph_leaves import OtherLeaf, path_to
    from limpid.doctor.other_optimizers import held_by, other_optimizers

    leaves = {id(leaf): leaf for leaf in record.other_leaves}
    if not leaves:
        return
    if not history.other_leaves:
        history.plays = any(i in held_by(other_optimizers(watched.optimizers)) for i in leaves)
    for key, leaf in leaves.items():
        if key in history.other_leaves:
            history.other_leaves[key].times += 1
        else:
            history.other_leaves[key] = OtherLeaf.of(leaf)
    seen = {i: leaf for i, leaf in history.other_leaves.items() if leaf.times >= NOT_REGISTERED["steps"]}
    held = held_by(other_optimizers(())) if seen else set()
    stuck = [leaf.parameter for i, leaf in seen.items() if leaf.stands_still and i not in held]
    places = [path_to(watched.info.model, parameter) for parameter in stuck]
    if stuck and any(places):
        size, named = sum(p.numel() for p in stuck), [place for place in places if place]
        yield NOT_REGISTERED.finding(
            severity="fault",
            step=record.number,
            where=named[0],
            says=f"{len(stuck)} tensors ({size:,} parameters: {', '.join(named[:3])}{', …' if len(named) > 3 else ''}) "
            "get a gradient, but are not in model.parameters() nor in any optimizer: they never change.",
            cause="" if "[" in named[0] else "kept where the model does not register it",
            meant=HIDDEN if _alone(watched, named) else None,
            evidence={"tensors": len(stuck), "parameters": size, "names": named[:32]},
        )


def _alone(watched: Watched, places: list[str]) -> bool:
    """Whether all of them lie in one list of the model that holds nothing else, or were kept from its register."""
    from torch import nn

    hidden = vars(watched.info.model)
    if all(isinstance(hidden.get(place.partition(".")[0]), nn.Module) for place in places):
        return True  # to set an attribute registers a module, unless its author goes round that
    owner, bracket, index = places[0].partition("[")
    lists = {place.partition("[")[0] for place in places}
    try:
        held = attrgetter(owner)(watched.info.model)
    except AttributeError:
        return False
    return bool(bracket) and index.startswith("0]") and len(lists) == 1 and isinstance(held, list) and len(held) == 1


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
        own = [[id(p) for group in optimizer.param_groups for p in group["params"]] for optimizer in exam.optimizers]
        shared = all(len(held) == len(set(held)) for held in own)
        yield IN_TWO_GROUPS.finding(
            severity="fault",
            where=names[0],
            says=f"{len(names)} parameters are held more than once ({', '.join(names[:4])}): each step updates them "
            "twice.",
            meant="parts that several optimizers share, each in its turn" if shared else None,
            evidence={"tensors": len(names)},
        )


@on_step(MADE_ANEW, asks="other")
def made_anew(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    before = history.made.total() > 0 or history.others > MADE_ANEW["times"]
    if record.updated or record.other is None or not before or history.others < MADE_ANEW["times"]:
        return
    yield MADE_ANEW.finding(
        severity="fault",
        step=record.number,
        where="optimizer",
        says=f"the optimizer that is watched makes no updates{' any more' if history.made.total() else ''}: "
        f"{history.others} others have updated its "
        "parameters since, one after the other, each with moments that begin at 0.",
        sure=0.95,
        evidence={"optimizers": history.others},
    )
