"""Modes that are wrong for what is done, weights that were not loaded, runs that do not go on where they stopped."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from statistics import median
from typing import TYPE_CHECKING, Any

from limpid.doctor.finding import Finding
from limpid.doctor.rule import Probe, Rule, Threshold, before_first_step, in_log, on_step
from limpid.doctor.weights import deviation, fresh_gains, is_constant, looks_drawn

if TYPE_CHECKING:
    from limpid.doctor.exam import Exam
    from limpid.doctor.history import History
    from limpid.doctor.logs.table import Curves
    from limpid.doctor.step_record import StepRecord
    from limpid.doctor.watched import Watched

FAMILY = "configuration"

TRAINED_IN_EVAL_MODE = Rule(
    "trained-in-eval-mode",
    FAMILY,
    detects="Backward passes while the model is in evaluation mode: dropout and batch statistics are off.",
    equation=r"\text{model.training} = \text{False during backward}",
    source="definition; nanoGPT PR#240",
    threshold="exact; a fault where the mode changes something (dropout p > 0, batch norm), a warning where it does in "
    "single modules, else a notice; nobody means it of a model that trained in training mode until it was evaluated",
    cost="one look per step; dropout modules in the first 20 steps and on sampled ones",
    needs=(Probe.PARAMETERS, Probe.MODES),
    cause="model.eval() for an evaluation, and no model.train() after it",
    fix="model.train() after evaluating",
    meant="dropout and statistics held still on purpose: fine-tuning, RL, adversarial examples",
    refuted_by="model.training True during backward",
)

DROPOUT_IN_EVALUATION = Rule(
    "dropout-in-evaluation",
    FAMILY,
    detects="Randomness in evaluation: dropout that ignores the mode, or a mode that was not set.",
    equation=r"f(x) \neq f(x) \;\text{in evaluation}",
    source="definition; nanoGPT PR#240",
    threshold="two evaluations of the same batch with different random numbers that differ beyond rounding; or "
    "{passes:g} forward passes without gradients in training mode, with dropout above 0; nobody means these where they "
    "come several in a row, now and then, with a loss of each, and never in evaluation mode",
    thresholds={"passes": Threshold(2, "one may be a look at shapes")},
    cost="one forward pass before the first step, and a count",
    needs=(Probe.PARAMETERS, Probe.FORWARD, Probe.EVENTS),
    cause="dropout that does not look at self.training: a functional call without training=…, or dropout_p set",
    fix="dropout_p=self.dropout if self.training else 0.0",
    meant="a model that draws: MC dropout, latents, noisy nets, policies and teachers with noise",
    refuted_by="equal logits",
)

DROPOUT_TOO_HIGH = Rule(
    "dropout-too-high",
    FAMILY,
    detects="Dropout that leaves hardly anything: the share to keep where the share to drop is meant.",
    equation=r"p > 0.8,\; \mathrm{Var}/\mathrm{mean}^2 = p / (1 - p)",
    source="Srivastava et al. 2014, section 7.3 and appendix A.4 (shares kept of 0.4 to 0.8), jmlr.org/papers/v15",
    threshold="a module whose p is above {most:g}, while it trains",
    thresholds={"most": Threshold(0.8, "beyond, the noise of a unit has more than four times the power of its mean")},
    cost="none",
    needs=(Probe.PARAMETERS,),
    cause="p is the share that is dropped: 1 - the share kept",
    fix="p = 0.1 where 0.9 is kept",
    meant="inputs masked by dropout (denoising, recommenders), or a test of strong noise",
    refuted_by="p at or below 0.8",
    explains=("loss-plateau",),
)

STATISTICS_NEVER_MEASURED = Rule(
    "statistics-never-measured",
    FAMILY,
    detects="Batch norm that uses stored statistics which are still 0 and 1: nothing is normalised.",
    equation=r"\hat x = (x - \mu) / \sigma,\; \mu = 0,\, \sigma = 1 \text{ as they began}",
    source="Ioffe & Szegedy 2015, algorithm 2, arXiv:1502.03167",
    threshold="exact: in evaluation mode during training, running means all 0 and variances all 1, and no batch "
    "counted",
    cost="one look at the buffers, on the first sampled steps",
    needs=(Probe.PARAMETERS, Probe.MODES),
    cause="a checkpoint without its buffers (named_parameters() instead of state_dict()), or one that was not loaded "
    "at all",
    fix="save and load state_dict() with strict=True, and look at the keys that are missing or unexpected",
    refuted_by="a running mean other than 0",
    explains=("loss-plateau", "parameters-frozen", "logits-drift"),
)

WEIGHTS_NOT_LOADED = Rule(
    "weights-not-loaded",
    FAMILY,
    detects="Weights still at their initialisation although a checkpoint was to be loaded.",
    equation=r"\gamma = 1,\; W \sim N(0, \sigma) \text{ or } U:\; \kappa = 3 \text{ or } 1.8 \pm 5 \sqrt{24/n}",
    source="standard error of a kurtosis: Fisher 1930; torchgeo#4036",
    threshold="exact gains of 1 (or 0) in all norms while the run is declared fine-tuning; or blocks of constant gains "
    "and matrices whose kurtosis is that of a fresh draw within {errors:g} standard errors, beside blocks whose gains "
    "are trained",
    thresholds={"errors": Threshold(5, "1 in 2 million of a Gaussian; trained matrices have heavier tails")},
    cost="one pass over the weights",
    needs=(Probe.PARAMETERS, Probe.BACKWARD, Probe.LOSS_GRADIENT),
    cause="no key of the checkpoint matched (a prefix such as 'model.'), and strict=False said nothing",
    fix="load_state_dict(…, strict=True), or look at what it returns: missing_keys, unexpected_keys",
    refuted_by="gains that differ from each other",
    explains=("initial-loss-off", "vocabulary-mismatch"),
)

RESUME_IS_NOT_ONE = Rule(
    "resume-is-not-one",
    FAMILY,
    detects="A resumed run that does not go on where it stopped: moments, rate, data or steps start anew.",
    equation=r"(\theta, m, v, \eta, \text{rng}, \text{batch})_{\text{after}} = (\ldots)_{\text{before}}",
    source="definition; transformers#33336",
    threshold="exact: a schedule that stands beyond 0 with an optimizer without moments; in a log, where step numbers "
    "go back or jump by more than {gap:g} times the usual: a loss {z:g} robust deviations higher, or a rate more than "
    "{up:g} times the one before, or under {down:g} of it",
    thresholds={
        "gap": Threshold(3, "a logger may leave out a line"),
        "z": Threshold(6, "as of loss-spike"),
        "up": Threshold(3, "no schedule rises by that between two lines but in its first steps"),
        "down": Threshold(0.2, "nor falls by that: a new warm-up does"),
    },
    cost="none",
    needs=(Probe.PARAMETERS, Probe.LOG),
    cause="moments, schedule, data position or random state were not restored",
    fix="save and load optimizer, schedule, scaler, random state and data position",
    meant="a stretch of a longer schedule, a new stage, or a new optimizer on the way",
    refuted_by="the same loss at the first step after the resume",
    explains=("loss-spike",),
)


@on_step(TRAINED_IN_EVAL_MODE, asks="in_eval")
def evaluation_mode(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    rate, norms, whole = watched.info.dropout_rate, watched.info.batch_norms, record.in_eval == ["model"]
    if history.eval_since is None:
        history.left_in_eval = whole and history.passes.evaluations == 1 and len(history.rates) > 1
    since = history.eval_since = history.eval_since or record.number
    effect = "which changes nothing here"
    if rate > 0 or norms:
        effect = f"dropout {rate:g} is inactive" if rate > 0 else "batch norm uses stored statistics"
    yield TRAINED_IN_EVAL_MODE.finding(
        severity="notice" if not (rate > 0 or norms) else "fault" if whole else "warning",
        step=record.number,
        where=record.in_eval[0],
        says=f"since step {since} {'the model trains' if whole else f'{len(record.in_eval)} modules train'} in "
        f"evaluation mode{', ever since it was evaluated' if history.left_in_eval else ''}: {effect}.",
        meant=None if history.left_in_eval else "",
        evidence={"dropout": rate, "since": since},
    )


@on_step(STATISTICS_NEVER_MEASURED, asks="sampled")
def never_measured(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    norms = dict(watched.info.model.named_modules()) if record.sampled and watched.info.batch_norms else {}
    names = [name for name in watched.info.batch_norms if name in norms and _as_they_began(norms[name])]
    if not names:
        return
    gains = [norms[name]._parameters.get("weight") for name in names]
    drawn = history.began_fresh or all(bool((gain == 1).all()) for gain in gains if gain is not None)
    what = "their gains began as they are drawn, too: these weights were not trained before, or not loaded"
    yield STATISTICS_NEVER_MEASURED.finding(
        severity="fault",
        step=record.number,
        where=names[0],
        says=f"{len(names)} batch norms ({', '.join(names[:3])}) use running statistics that are still 0 and 1: "
        + (f"{what}." if drawn else "their gains are trained, so that the buffers are missing in what was loaded."),
        cause="a checkpoint whose names do not match (a prefix, strict=False), or none: the body is random"
        if drawn
        else "",
        meant="batch norms left as a plain gain and bias on purpose, or statistics that come later" if drawn else None,
        sure=0.9,
        evidence={"norms": len(names), "gains_as_they_began": drawn},
    )


def _as_they_began(norm: Any) -> bool:
    """Whether a batch norm normalises by statistics that nobody has measured."""
    if norm.training or norm.running_mean is None or norm.num_batches_tracked is None:
        return False
    counted = int(norm.num_batches_tracked) > 0
    return not counted and not bool(norm.running_mean.any()) and bool((norm.running_var == 1).all())


@before_first_step(DROPOUT_TOO_HIGH)
def hardly_anything_is_kept(exam: Exam) -> Iterator[Finding]:
    from limpid.doctor.model_info import kept_by

    rates = [(float(kept_by(module, "p", 0.0)), name) for name, module in exam.info.dropout_modules]
    high = [(rate, name) for rate, name in rates if DROPOUT_TOO_HIGH["most"] < rate]
    if high:
        rate, name = max(high)
        yield DROPOUT_TOO_HIGH.finding(
            severity="warning",
            where=name,
            says=f"dropout of {rate:g} in {len(high)} modules keeps {1 - rate:.0%} of what passes.",
            sure=0.8,
            evidence={"p": rate, "modules": len(high)},
        )


@before_first_step(DROPOUT_IN_EVALUATION)
def random_in_evaluation(exam: Exam) -> Iterator[Finding]:
    first, second = exam.plain, exam.plain_again
    if first is None or second is None:
        return
    moved = float((second - first).abs().nan_to_num(0.0).max())
    if moved > exam.rounding:
        yield DROPOUT_IN_EVALUATION.finding(
            severity="warning",
            where="model",
            says=f"two evaluations of one batch in evaluation mode differ by {moved:.2g} (rounding "
            f"{exam.rounding:.0e}).",
            evidence={"moved": moved, "rounding": exam.rounding},
        )


@on_step(DROPOUT_IN_EVALUATION)
def evaluated_in_training_mode(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    passes = history.random_evaluations
    if passes >= DROPOUT_IN_EVALUATION["passes"]:
        yield DROPOUT_IN_EVALUATION.finding(
            severity="warning",
            step=record.number,
            where="model",
            says=f"{passes} forward passes without gradients ran in training mode, with dropout "
            f"{watched.info.dropout_rate:g} active: what they gave is random.",
            cause="an evaluation without model.eval()",
            fix="model.eval() before evaluating, model.train() after",
            meant=None if history.passes.judged_in_training(len(history.rates)) else "",
            sure=0.9,
            refuted_by="model.training False in these passes",
            evidence={"passes": passes},
        )


@before_first_step(WEIGHTS_NOT_LOADED)
def not_loaded(exam: Exam) -> Iterator[Finding]:
    info = exam.info
    constant, gains = fresh_gains(info)
    everything = bool(exam.pretrained) and bool(gains) and constant == gains
    drawn = _drawn_blocks(exam)
    if not everything and not drawn:
        return
    std = sorted(deviation(p) for name, p in info.parameters.items() if p.ndim >= 2 and info.block_of(name))
    typical = std[len(std) // 2] if std else math.nan
    says = f"{', '.join(drawn[:4])} {'is' if len(drawn) == 1 else 'are'} still at initialisation (gains exactly "
    says += "constant, Gaussian matrices) while other blocks are trained."
    if everything:
        loss = ""
        for gradient in exam.loss_gradients[:1]:
            chance = math.log(gradient.shape[-1])
            loss = f", and the first loss {gradient.mean_surprise:.2f} is that of fresh weights (ln V = {chance:.2f})"
        says = f"weights are still at initialisation: all {gains} gains exactly constant, std {typical:.4f}{loss}."
    blocks = [block for block, _ in info.blocks]
    on_top = not everything and set(drawn) == set(blocks[len(blocks) - len(drawn) :])
    yield WEIGHTS_NOT_LOADED.finding(
        severity="fault",
        where=drawn[0] if drawn else "model",
        says=says,
        meant="top blocks that are drawn anew for tuning, or added to a trained model" if on_top else None,
        sure=0.97,
        evidence={"gains": gains, "constant": constant, "std": typical, "blocks": drawn},
    )


def _drawn_blocks(exam: Exam) -> list[str]:
    """Blocks that look freshly drawn beside others whose gains are trained."""
    info, errors = exam.info, WEIGHTS_NOT_LOADED["errors"]
    gains = {block: [name for name in info.norm_gains if name.startswith(block + ".")] for block, _ in info.blocks}
    constant = {block: [is_constant(info.parameters[name]) for name in names] for block, names in gains.items()}
    if not any(flags and not any(flags) for flags in constant.values()):
        return []
    return [block for block, flags in constant.items() if flags and all(flags) and looks_drawn(info, block, errors)]


@before_first_step(RESUME_IS_NOT_ONE)
def moments_at_zero(exam: Exam) -> Iterator[Finding]:
    """Steps counted but moments empty: the optimizer was not restored with the weights."""
    advanced = [scheduler for scheduler in exam.schedulers if getattr(scheduler, "last_epoch", 0) > 0]
    empty = [o for o in exam.optimizers if not o.state and any("betas" in group for group in o.param_groups)]
    if advanced and empty:
        yield RESUME_IS_NOT_ONE.finding(
            severity="warning",
            where="optimizer",
            says=f"the schedule stands at step {advanced[0].last_epoch}, but the optimizer has no moments: these "
            "begin anew.",
            cause="optimizer.state_dict() was not saved or not loaded",
            fix="save and load the optimizer's state too",
            sure=0.9,
            refuted_by="moments in optimizer.state",
            evidence={"schedule": advanced[0].last_epoch},
        )


@in_log(RESUME_IS_NOT_ONE)
def restarts(curves: Curves) -> Iterator[Finding]:
    """Where step numbers go back or jump ahead: do loss and rate go on from where they were?"""
    rule, order = RESUME_IS_NOT_ONE, curves.order
    rates, losses = dict(curves.series.get("learning_rate", [])), curves.values("loss")
    gaps = [b - a for a, b in itertools.pairwise(order)]
    if len(gaps) < 20:
        return
    usual = median(gaps)
    for i, gap in enumerate(gaps):
        old, new = losses[max(0, i - 19) : i + 1], losses[i + 1 : i + 6]
        if 0 < gap <= rule["gap"] * usual or len(old) < 10 or len(new) < 3:
            continue
        before, after, middle = order[i], order[i + 1], median(old)
        spread = 1.4826 * median(abs(value - middle) for value in old) or 1e-3
        z = (median(new) - middle) / spread
        ratio = rates.get(after, math.nan) / rates[before] if rates.get(before) else math.nan
        if z > rule["z"] or ratio > rule["up"] or ratio < rule["down"]:
            what = f"rate {rates.get(before, math.nan):.1e} to {rates.get(after, math.nan):.1e}"
            if z > rule["z"]:
                what = f"loss {middle:.3g} to {median(new):.3g}"
            yield rule.finding(
                severity="warning",
                step=after,
                where="resume",
                says=f"step numbers go from {before} to {after}, and the run does not go on as it was: {what}.",
                sure=0.7,
                evidence={"before": before, "after": after, "z": z, "rate_ratio": ratio},
            )
            return
