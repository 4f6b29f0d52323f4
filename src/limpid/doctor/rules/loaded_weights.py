"""Weights that have been trained, loaded into a model that computes something else with them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from limpid.doctor.finding import Finding
from limpid.doctor.rule import Probe, Rule, Threshold, before_first_step

if TYPE_CHECKING:
    from torch import Tensor, nn

    from limpid.doctor.exam import Exam
    from limpid.doctor.loss_gradient import LossGradient

FAMILY = "loaded_weights"
BEYOND = 1.5
"""Times the largest bias that PyTorch draws."""

GAINS_LESS_ONE = Rule(
    "norm-gains-less-one",
    FAMILY,
    detects="Gains of norms that were stored less one, as Gemma's are, in norms that multiply by them as they stand.",
    equation=r"\hat x \odot w \;\text{with}\; w \approx 0,\;\text{where}\; \hat x \odot (1 + w) \;\text{is meant}",
    source="Zhang & Sennrich 2019, arXiv:1910.07467; Gemma Team 2024, arXiv:2403.08295, whose norms multiply by 1 + w",
    threshold="of {norms:g} norms or more, all that the model has and that multiply by their gains, the median gain of "
    "each lies within {near:g} of 0, none has one value alone, and {negative:.0%} or more of all gains are negative",
    thresholds={
        "norms": Threshold(3, "a single one may begin at 0 on purpose, or be the last of a branch"),
        "near": Threshold(0.25, "trained gains spread around 1; decay does not carry them so near to 0"),
        "negative": Threshold(0.05, "decay shrinks a gain and never turns its sign"),
    },
    cost="one pass over the gains; each norm once on two drawn rows",
    needs=(Probe.PARAMETERS,),
    cause="a checkpoint of a family whose norms multiply by 1 + w",
    fix="add 1 to these gains when they are loaded, or use the norm of that family",
    refuted_by="a norm whose gains lie around 1",
    explains=("loaded-weights-know-nothing", "gradient-vanishes-with-depth", "loss-plateau"),
)

KNOW_NOTHING = Rule(
    "loaded-weights-know-nothing",
    FAMILY,
    detects="Weights that have been trained, and whose first loss on tokens is worse than that of a guess among all.",
    equation=r"-\tfrac1n \textstyle\sum \ln p(y) > \ln V",
    source="definition; Shannon 1948 (ln V is the loss of a guess that knows nothing)",
    threshold="{errors:g} standard errors and {above:g} nat above ln V on {labels:g} next tokens or more, where "
    "gains of norms or biases of head or gates show that the weights have been trained: a notice, for text of another "
    "kind has such a loss, too; a fault where the loss falls by {falls:g} nat and below ln V with the gates of LSTM or "
    "GRU in another order",
    thresholds={
        "errors": Threshold(4, "1 in 15,000 of a Gaussian"),
        "above": Threshold(0.2, "half the variance of a head's logits that is drawn as usual"),
        "labels": Threshold(64, "a mean of fewer says little"),
        "falls": Threshold(0.5, "ten standard errors; no order is better than the one that was trained by chance"),
    },
    cost="none: the gradient of the logits; with LSTM or GRU a forward pass for each order of gates, where it is so",
    needs=(Probe.BACKWARD, Probe.LOSS_GRADIENT),
    cause="what reads the weights is not what they were trained with: another numbering of the vocabulary, another "
    "order of gates or layers, another number of heads; or the text is of another kind altogether",
    fix="compare the logits of one row with those of the code that the weights come from",
    refuted_by="a first loss below ln V; text of the kind that they were trained on",
    explains=("loss-plateau", "loss-diverges", "learning-rate-too-high"),
)


@before_first_step(GAINS_LESS_ONE)
def gains_less_one(exam: Exam) -> Iterator[Finding]:
    rule = GAINS_LESS_ONE
    gains = [exam.info.parameters[name].detach() for name in exam.info.norm_gains]
    if len(gains) < rule["norms"] or exam.info.sharded or any(gain.is_meta for gain in gains):
        return
    values = [gain.float().flatten() for gain in gains]
    if any(abs(float(v.median())) > rule["near"] or bool((v == v[:1]).all()) for v in values):
        return
    negative = sum(int((v < 0).sum()) for v in values) / sum(v.numel() for v in values)
    owners = {name.rpartition(".")[0] for name in exam.info.norm_gains}
    norms = [module for name, module in exam.model.named_modules() if name in owners]
    if negative < rule["negative"] or not all(_multiplies(exam, norm) for norm in norms):
        return
    middle = sorted(float(v.mean()) for v in values)[len(values) // 2]
    yield rule.finding(
        severity="fault",
        where=exam.info.norm_gains[0],
        says=f"the gains of all {len(gains)} norms lie around {middle:.2g}, not 1 ({negative:.0%} are negative), and "
        "the norms multiply by them as they stand: the signal behind each is small, and next to nothing of the blocks "
        "is added. They look stored less one.",
        sure=0.95,
        evidence={"norms": len(gains), "mean": middle, "negative": negative},
    )


def _multiplies(exam: Exam, norm: nn.Module) -> bool:
    """Whether a norm multiplies what it has normed by its gains as they stand, and not by 1 + w."""
    from torch import nn, randn

    if isinstance(norm, nn.LayerNorm | nn.RMSNorm):
        return True
    gain = next(iter(norm.parameters(recurse=False)), None)
    if gain is None or gain.ndim != 1 or not exam.may_call:
        return False
    from limpid.doctor.undisturbed import seeded, undisturbed

    with undisturbed(exam.shield):
        seeded()
        given = randn(2, gain.numel(), dtype=gain.dtype, device=gain.device)
        made = type(norm).forward(norm, given)
    size = float(gain.detach().float().square().mean().sqrt())
    return bool(made.shape == given.shape) and float(made.float().square().mean().sqrt()) < 2 * size


@before_first_step(KNOW_NOTHING)
def know_nothing(exam: Exam) -> Iterator[Finding]:
    rule = KNOW_NOTHING
    gradient = next(iter(exam.loss_gradients), None)
    if gradient is None or not gradient.is_of_language or gradient.misfit > 0.3 or gradient.inverted:
        return
    surprise = gradient.surprise[gradient.labelled].double()
    if len(surprise) < rule["labels"] or gradient.match(1)[0] < 0.99:
        return
    level, error = float(surprise.mean()), float(surprise.std()) / math.sqrt(len(surprise))
    chance = math.log(gradient.shape[-1])
    if level - chance < max(rule["above"], rule["errors"] * error):
        return
    sign = _sign_of_training(exam, gradient.shape[-1])
    order, fallen = _better_order(exam, gradient) if sign else ("", math.inf)
    if order and fallen < min(level - rule["falls"], chance):
        yield rule.finding(
            severity="fault",
            where=order,
            says=f"the gates of {order} are not in the order that its weights were trained in: the first loss is "
            f"{level:.2f} nats, worse than ln V = {chance:.2f} of a random guess, and {fallen:.2f} on the same rows "
            "with the gates exchanged.",
            cause="weights of another library, whose gates lie in another order, copied as they are",
            fix="put the gates in the order of torch.nn: LSTM input, forget, new, output; GRU reset, update, new",
            sure=0.95,
            evidence={"first_loss": level, "exchanged": fallen, "ln_vocab": chance},
        )
    elif sign:
        yield rule.finding(
            severity="notice",
            where="loss",
            says=f"the weights have been trained ({sign}), and the first loss is {level:.2f} nats, worse than ln V = "
            f"{chance:.2f} of a random guess among {gradient.shape[-1]:,} tokens: vocabulary, gates, heads or layers "
            "are not in the order that they were trained in, or the text is of another kind.",
            sure=0.5,
            evidence={"first_loss": level, "ln_vocab": chance, "error": error, "labels": len(surprise)},
        )


def _better_order(exam: Exam, gradient: LossGradient) -> tuple[str, float]:
    """The recurrent module whose gates, exchanged, give the lowest loss on the same rows, and that loss, nats."""
    import torch
    from torch import nn

    call, wanted = exam.usual_call, gradient.taught_ids
    cells = [(name, m) for name, m in exam.model.named_modules() if isinstance(m, nn.LSTM | nn.GRU)]
    if call is None or not exam.may_call or not gradient.complete or wanted.ndim != 2 or not 0 < len(cells) <= 2:
        return "", math.inf
    best = "", math.inf
    for name, cell in cells:
        count = 4 if isinstance(cell, nn.LSTM) else 3
        weights = [w for w in cell.parameters() if len(w) == count * cell.hidden_size]
        kept = [w.detach().clone() for w in weights]
        try:
            for order in list(itertools.permutations(range(count)))[1:]:
                with torch.no_grad():
                    for weight, own in zip(weights, kept, strict=True):
                        gates = own.chunk(count)
                        weight.copy_(torch.cat([gates[i] for i in order]))
                logits = exam.logits(call)
                if logits is None or logits.shape[:-1] != wanted.shape:
                    return "", math.inf
                taught = wanted >= 0
                loss = float(nn.functional.cross_entropy(logits[taught], wanted[taught].to(logits.device)))
                best = min(best, (name or "model", loss), key=lambda one: one[1])
        finally:
            with torch.no_grad():
                for weight, own in zip(weights, kept, strict=True):
                    weight.copy_(own)
    return best


def _sign_of_training(exam: Exam, vocab: int) -> str:
    """What no initialiser draws: gains that differ from each other; biases of head or gates beyond their own scale."""
    from torch import nn

    info = exam.info
    gains = [info.parameters[name].detach() for name in info.norm_gains]
    if gains and all(_varies(gain) for gain in gains):
        return "the gains of its norms differ from each other"
    head = info.head(vocab)
    bias = None if head is None else info.parameters.get(f"{head[0]}.bias")
    if gains or head is None:
        return ""
    if bias is not None and _beyond(bias, head[1].shape[-1]):
        return f"biases of the head are up to {float(bias.detach().abs().max()):.2g}"
    cells = [module for module in info.model.modules() if isinstance(module, nn.RNNBase)]
    biases = [p.detach() for cell in cells for name, p in cell.named_parameters(recurse=False) if "bias" in name]
    widths = [cell.hidden_size for cell in cells for name, _ in cell.named_parameters(recurse=False) if "bias" in name]
    if biases and all(_beyond_by_gate(b, width) for b, width in zip(biases, widths, strict=True)):
        return f"biases of its gates are up to {max(float(b.abs().max()) for b in biases):.2g}"
    return ""


def _beyond(bias: Tensor, inputs: int) -> bool:
    """Whether biases differ from each other, and reach beyond ±1/√inputs, within which PyTorch draws them."""
    return _varies(bias) and float(bias.detach().abs().max()) > BEYOND / math.sqrt(inputs)


def _beyond_by_gate(bias: Tensor, width: int) -> bool:
    """The same of any gate's: those of a forget gate are often set to 1, all alike."""
    return any(_beyond(gate, width) for gate in bias.split(width))


def _varies(values: Tensor) -> bool:
    from limpid.doctor.weights import is_constant

    return values.numel() > 1 and not is_constant(values)
