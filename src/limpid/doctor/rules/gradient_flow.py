"""Where gradients arrive: parameters cut off, never used, or starved by depth."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from limpid.doctor.finding import Finding
from limpid.doctor.rule import Probe, Rule, Threshold, before_first_step, on_step
from limpid.doctor.weights import hands_gradient_on, is_zero

if TYPE_CHECKING:
    from limpid.doctor.exam import Exam
    from limpid.doctor.history import History
    from limpid.doctor.step_record import StepRecord
    from limpid.doctor.watched import Watched

FAMILY = "gradient_flow"

MODULE_NEVER_CALLED = Rule(
    "module-never-called",
    FAMILY,
    detects="A module with parameters that the forward pass never uses.",
    equation=r"\text{calls} = 0",
    source="definition; forward hooks",
    threshold="exact",
    cost="one forward pass before the first step",
    needs=(Probe.PARAMETERS, Probe.MODULES, Probe.BACKWARD),
    cause="constructed but not used in forward",
    fix="call it, or remove it",
    meant="parts for inference, for other tasks or stages, or a copy that is kept inside",
    refuted_by="one call",
    explains=("weights-never-change",),
)

GRADIENT_CUT = Rule(
    "gradient-cut",
    FAMILY,
    detects="Parameters that are used but get no gradient: the graph is cut between them and the loss.",
    equation=r"\partial L / \partial p = \text{None or } 0",
    source="definition; reverse-mode differentiation",
    threshold="exact: None after the loop's backward pass, or 0 everywhere where no factor that is still 0 explains "
    "it; in the loop None at each of the first {updates:g} updates, of {share:.0%} or more of what the optimizer is "
    "to train",
    thresholds={
        "updates": Threshold(20, "a block that is dropped every other time is there by then, but for one in 2^20"),
        "share": Threshold(0.5, "single modules may wait for their turn"),
    },
    cost="one forward and backward pass before the first step; a look at each gradient in the first steps",
    needs=(Probe.PARAMETERS, Probe.MODULES, Probe.BACKWARD, Probe.EVENTS),
    cause="detach(), no_grad(), .data, .item() or a function without derivative between them and the loss",
    fix="remove it; or freeze these parameters with requires_grad_(False), and leave them out of the optimizer",
    meant="a stop-gradient: probes on features, targets, codebooks, parts that wait for their stage",
    refuted_by="a gradient that is not 0 for one of them",
    explains=("weights-never-change", "loss-plateau", "gradient-is-not-the-gradient"),
)

GRADIENT_VANISHES = Rule(
    "gradient-vanishes-with-depth",
    FAMILY,
    detects="Gradients that shrink geometrically from the last block to the first.",
    equation=r"\lVert g_{\text{first}} \rVert / \lVert g_{\text{last}} \rVert = \rho^{L}",
    source="Bengio et al. 1994; Pascanu et al. 2012, eq. 5, arXiv:1211.5063",
    threshold="first over last block a factor of {factor:g} or more apart, either way, and monotone over at least "
    "{blocks:g} blocks",
    thresholds={
        "factor": Threshold(1e3, "Adam divides it out until ε, 1e-8 of a gradient near 1e-5, begins to count"),
        "blocks": Threshold(3, "two blocks are monotone whatever they are"),
    },
    cost="norms of one backward pass",
    needs=(Probe.PARAMETERS, Probe.BACKWARD),
    cause="no residual connection or norm, or weights of the wrong size",
    fix="pre-norm residual blocks; weights with std 1/√fan-in",
    meant="depth without shortcuts on purpose (teaching, reservoirs), lengths that Adam divides out",
)


@before_first_step(MODULE_NEVER_CALLED, GRADIENT_CUT)
def gradients_arrive(exam: Exam) -> Iterator[Finding]:
    """Tell apart what is unused, what is cut off, and what is 0 for a reason."""
    parts = [] if exam.call is None else exam.call.own_parts  # others have passes of their own
    in_pass = {id(p) for part in parts for p in part.parameters()}
    trained = {n: p for n, p in exam.info.parameters.items() if p.requires_grad and (not parts or id(p) in in_pass)}
    trained = {name: p for name, p in trained.items() if p.grad is not None or id(p) not in exam.arrived}
    trained = {name: p for name, p in trained.items() if not hands_gradient_on(p)}
    flow, norms = exam.flow, exam.gradient_norms
    if not trained or (flow is None and exam.trial is None):
        return
    if exam.trial_shows_no_graph:
        modules = [] if flow is None else flow.cut
        yield replace(_cut(exam, list(trained), modules, "the parameters from the loss"), meant="")
        return
    if not norms:
        return
    if flow is None:  # no pass can be made again to see which modules it calls: the user's own loss shows gradients
        if without := [name for name in trained if norms.get(name) is None]:
            yield replace(_cut(exam, without, [], None), meant=GRADIENT_CUT.meant)
        return
    unused = [
        name
        for name, module in exam.model.named_modules()
        if name and name not in flow.called and any(True for _ in module.parameters(recurse=False))
    ]
    waiting = _waits_for_tokens(exam)
    unused = [name for name in unused if not any(f"{name}.".startswith(f"{expert}.") for expert in waiting)]
    trained = {n: p for n, p in trained.items() if not any(n.startswith(f"{expert}.") for expert in waiting)}
    if any(norms.get(name) is None for name in trained):
        chance = exam.left_to_chance
        unused = [name for name in unused if not _inside(name, chance)]
        trained = {name: p for name, p in trained.items() if not _inside(name, chance)}
    without = [name for name in trained if norms.get(name) is None]
    idle = [name for name in without if any(name.startswith(module + ".") for module in unused)]
    if idle:
        modules = [module for module in unused if any(name.startswith(module + ".") for name in idle)]
        size = sum(trained[name].numel() for name in idle)
        yield MODULE_NEVER_CALLED.finding(
            severity="warning",
            where=modules[0],
            says=f"{', '.join(modules[:4])} ({size:,} parameters) is never called by the forward pass: it will not "
            "change.",
            evidence={"modules": modules[:32], "parameters": size},
        )
    cut = [name for name in without if name not in idle]
    silent = [name for name in flow.silent if not _starts_at_zero(exam, name)]
    waits = bool(flow.silent) and not silent  # for weights that start at 0 to leave it
    zero = [name for name in trained if norms.get(name) == 0 and not waits and not _excused(exam, name)]
    zero = [] if zero and _leaves_zero(exam) else zero
    spare = _poolers(exam) if cut and not zero else set()
    if spare and all(_inside(name, spare) for name in cut) and not any(_inside(name, spare) for name in flow.cut):
        yield _unread(min(spare, key=len), cut)
    elif cut or (zero and not exam.has_nothing_to_learn):
        found = _cut(exam, cut + zero, flow.cut, None)
        found = found if cut or not silent else _dead(found, silent, "" if exam.fresh else PUT_IN)
        yield replace(found, meant="") if len(cut) == len(trained) else found


def _inside(name: str, modules: set[str]) -> bool:
    """Whether a module or parameter is one of these, or a part of one."""
    parts = name.split(".")
    return any(".".join(parts[:i]) in modules for i in range(1, len(parts) + 1))


def _starts_at_zero(exam: Exam, module: str) -> bool:
    """Whether a module gives 0 because its weights, or those of a part of it, are 0."""
    parts = (list(part.parameters(recurse=False)) for part in exam.model.get_submodule(module).modules())
    return any(own and all(map(is_zero, own)) for own in parts)


def _leaves_zero(exam: Exam) -> bool:
    """Whether a matrix that is 0 has a gradient: once it is not, what lies behind it has one, too."""
    norms, named = exam.gradient_norms, exam.info.parameters
    return any(norms.get(name) and p.ndim > 1 and is_zero(p) for name, p in named.items())


def _poolers(exam: Exam) -> set[str]:
    return {name for name, module in exam.model.named_modules() if type(module).__name__.endswith("Pooler")}


def _unread(where: str, names: list[str]) -> Finding:
    """The finding for a pooler that transformers' encoders bring along, and whose output the loop does not read."""
    return GRADIENT_CUT.finding(
        severity="notice",
        where=where,
        says=f"{where} is called and nothing reads what it gives: its {len(names)} tensors get no gradient.",
        cause="an encoder's pooler beside a head of one's own",
        fix="nothing, or add_pooling_layer=False",
        evidence={"tensors": len(names), "names": names[:32]},
    )


def _cut(exam: Exam, names: list[str], modules: list[str], what: str | None) -> Finding:
    """The finding for parameters without gradient; `modules` are those whose output has left the graph."""
    size = sum(exam.info.parameters[name].numel() for name in names)
    total = exam.info.size
    blocks = [block for block, _ in exam.info.blocks]
    dead = [block for block in blocks if any(name.startswith(block + ".") for name in names)]
    alive = [block for block in blocks if block not in dead]
    outside = [name for name in names if exam.info.block_of(name) is None]
    shown = ", ".join(outside[:2] + dead[:3]) or ", ".join(names[:3])
    last = _last_cut(blocks, dead, alive, modules)
    at = f"; the output of {last} has left the graph" if last and blocks else ""
    behind = bool(alive and dead) and blocks.index(alive[0]) > blocks.index(dead[-1])
    fine = f" ({alive[0]} onwards are fine)" if behind else ""
    return GRADIENT_CUT.finding(
        severity="fault",
        where=last or names[0],
        says=f"no gradient reaches {what or shown} ({len(names)} tensors, {size:,} parameters, "
        f"{size / total:.0%}){at}{fine}.",
        evidence={"tensors": len(names), "parameters": size, "names": names[:32]},
    )


PUT_IN = "an activation put late into trained weights, which move into its range"


def _dead(found: Finding, silent: list[str], meant: str) -> Finding:
    """The same where a layer's output is 0 for every row: a derivative of 0 passes nothing back."""
    return replace(
        found,
        where=silent[0],
        meant=meant,
        says=f"{found.says[:-1]}: the output of {silent[0]} is 0 for every row of the batch, its units are dead.",
        cause="biases, inputs or a rate that put every unit of an activation on its flat side",
        fix="biases of 0 in the layers before it (a prior belongs in the last bias alone), or an activation with a "
        "slope "
        "on both sides",
    )


def _last_cut(blocks: list[str], dead: list[str], alive: list[str], modules: list[str]) -> str:
    """Where the graph was left last: the dead block right before a living one, else the last module seen to."""
    if dead and alive and blocks.index(dead[-1]) + 1 == blocks.index(alive[0]):
        return dead[-1]
    return modules[-1] if modules else ""


def _waits_for_tokens(exam: Exam) -> list[str]:
    """Modules of a list of equals inside a block, of which only some have a gradient: experts that are chosen from."""
    from torch import nn

    taught = [name for name, norm in exam.gradient_norms.items() if norm]
    found = []
    for name, module in exam.model.named_modules():
        if isinstance(module, nn.ModuleList) and exam.info.block_of(name) not in (None, name):
            each = [f"{name}.{key}" for key in module._modules]
            idle = [one for one in each if not any(n.startswith(f"{one}.") for n in taught)]
            alike = len({type(child) for child in module}) == 1
            found += idle if alike and len(idle) < len(module) else []
    return found


def _excused(exam: Exam, name: str) -> bool:
    """Zero gradients that theory predicts: behind a factor that is still 0, rows never looked up, biases of keys."""
    info = exam.info
    lower = name.lower()
    if name in info.embedding_names or info.parameters[name].numel() < 2:
        return True
    if lower.endswith("bias") or "lora" in lower or "rel" in lower:
        return True
    # somewhere in its own block a matrix or gain is all 0: the product's other factor has gradient 0
    block = info.block_of(name)
    siblings = [
        p
        for other, p in info.parameters.items()
        if (block is None or other.startswith(block + ".")) and other != name and not other.endswith("bias")
    ]
    if any(p.numel() > 1 and is_zero(p) for p in siblings):
        return True
    # or what stands behind everything, the head
    head = info.head(exam.vocab) if exam.vocab else None
    return head is not None and is_zero(head[1])


@on_step(GRADIENT_CUT)
def never_a_gradient(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    """What an optimizer is to train, and what none of its first updates had a gradient of."""
    rule = GRADIENT_CUT
    if max(history.made.values(), default=0) < rule["updates"] or history.times(rule.slug) > 1:
        return
    trained = {id(p): p for p in watched.held if p.requires_grad and not hands_gradient_on(p)}
    never = [i for i in trained if history.without[i] >= rule["updates"]]
    size, whole = (sum(trained[i].numel() for i in some) for some in (never, trained))
    if not never or size < rule["share"] * whole:
        return
    names = [watched.info.names.get(i, "?") for i in never]
    yield rule.finding(
        severity="fault",
        step=record.number,
        where=names[0],
        says=f"{', '.join(names[:3])} and others ({len(names)} tensors, {size:,} parameters, {size / whole:.0%} of "
        f"what the optimizer holds) had no gradient at any of {rule['updates']:g} updates: they are not trained.",
        meant=None,
        sure=0.95,
        evidence={"tensors": len(names), "parameters": size, "names": names[:32]},
    )


def _alike(exam: Exam) -> list[str]:
    """Linear layers of one shape that follow one another, where no list of blocks is there."""
    from torch import nn

    layers = [
        (name, m.in_features, m.out_features) for name, m in exam.model.named_modules() if isinstance(m, nn.Linear)
    ]
    runs = [list(run) for _, run in itertools.groupby(layers, lambda one: one[1:])]
    longest = max(runs, key=len, default=[])
    return [name for name, *_ in longest] if len(longest) > GRADIENT_VANISHES["blocks"] else []


@before_first_step(GRADIENT_VANISHES)
def by_depth(exam: Exam) -> Iterator[Finding]:
    norms = exam.gradient_norms
    blocks = [block for block, _ in exam.info.blocks]
    if len(blocks) < GRADIENT_VANISHES["blocks"] and norms:
        blocks = _alike(exam)
    if len(blocks) < GRADIENT_VANISHES["blocks"] or not norms:
        return
    sizes = []
    for block in blocks:
        own = [v for n, v in norms.items() if n.startswith(block + ".") and v and exam.info.parameters[n].ndim >= 2]
        if not own:
            return
        sizes.append(math.sqrt(sum(v * v for v in own)))
    ratio, factor = sizes[0] / sizes[-1], GRADIENT_VANISHES["factor"]
    steps = [math.log(a / b) for a, b in itertools.pairwise(sizes)]
    monotone = all(s > 0 for s in steps) or all(s < 0 for s in steps)
    if 1 / factor < ratio < factor or not monotone:
        return
    per_block = max(ratio, 1 / ratio) ** (1 / (len(blocks) - 1))
    yield GRADIENT_VANISHES.finding(
        severity="warning",
        where=blocks[0],
        says=f"gradients {'shrink' if ratio < 1 else 'grow'} {per_block:.1f}-fold per block in the backward pass: "
        f"first over last block {ratio:.1e}.",
        sure=0.8,
        refuted_by=f"a ratio within {1 / factor:g} … {factor:g}",
        evidence={"ratio": ratio, "norms": [round(s, 8) for s in sizes]},
    )
