"""What rows are made of: rows that are not text like the rest, and borders in the order of the data."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from statistics import median
from typing import TYPE_CHECKING

from limpid.doctor.finding import Finding
from limpid.doctor.rule import Probe, Rule, Threshold, on_step

if TYPE_CHECKING:
    import numpy as np

    from limpid.doctor.borders import Border
    from limpid.doctor.history import History
    from limpid.doctor.row_history import RowHistory
    from limpid.doctor.step_record import StepRecord
    from limpid.doctor.watched import Watched

FAMILY = "mixture"

STAGE = Threshold(2, "a schedule halves or doubles its rate in one step where another stage begins, or in its warm-up")

CORRUPT_BATCH = Rule(
    "corrupt-batch",
    FAMILY,
    detects="Rows that are not text: uniform random ids, or one id repeated.",
    equation=r"H(\text{row}) \;\text{outside that of every row before}",
    source="Chowdhery et al. 2022, section 5.1, arXiv:2204.02311",
    threshold="token entropy above {up:g} robust deviations, {margin:.0%} of the spread above every row so far and "
    "{nats:g} nat above their median, or below {down:g} deviations and {low:.0%} of the lowest; in {share:.0%} of the "
    "rows of a step (2 at least), or in {again:g} rows of 4 steps and {usual:g} times as many as usual (one in "
    "{rare:g})",
    thresholds={
        "up": Threshold(4, "1 in 30,000 rows of a Gaussian; the margin does the rest"),
        "margin": Threshold(0.3, "the largest of 1024 rows is seldom surpassed by a third of the upper half"),
        "nats": Threshold(0.5, "a vocabulary used 1.6 times as evenly"),
        "down": Threshold(8, "entropies have a long lower tail: tables, rulers, code"),
        "low": Threshold(0.6, "of the lowest seen, or of the median less a quarter"),
        "share": Threshold(0.25, "single rows of one character are text too"),
        "again": Threshold(3, "three rulers within four steps are rare"),
        "usual": Threshold(10, "some sources hold many"),
        "rare": Threshold(200, "rows of text that are one character are taken for granted"),
    },
    cost="one histogram per row",
    meant="rows of noise or of one token on purpose: negatives, a control, one task among several",
    needs=(Probe.ROWS,),
    cause="a corrupt shard, or another type or offset than it was written with",
    fix="look at these rows decoded; skip or clean them",
    explains=(
        "loss-spike",
        "gradient-explodes",
        "loss-diverges",
        "data-sorted",
        "batch-repeats",
        "rows-duplicated",
        "loss-below-floor",
    ),
)

DATA_SORTED = Rule(
    "data-sorted",
    FAMILY,
    detects="Data in order of source or length: the distribution of tokens jumps and stays.",
    equation=r"\mathrm{JS}(\text{batches before}, \text{batches after}) \gg \mathrm{JS}(\text{neighbours})",
    source="Lin 1991, eq. 3.4 (Jensen-Shannon divergence); transformers#4398",
    threshold="a permutation test: divergence of the {side:g} batches before and after a border {z:g} standard "
    "deviations, and {times:g} times, above those of 128 random halves that take half of each side, {before:g} times "
    "above that of every border before, and pairs of batches across it {jump:g} times as far apart as pairs beside it; "
    "or of the last {side:g} against all before {z_all:g} deviations and {times_all:g} times above, and above that of "
    "any {side:g} before: in a text read in order all borders are alike; never below {least:g} nat; then the {side:g} "
    "batches that follow must differ {z:g} deviations from all before the border, and be nearer to those after it; a "
    "notice where labels change and the moments of measured inputs differ no more than in random halves, or where "
    "parameters are frozen or thawed with it, or the rate jumps by a factor of {rate:g}; a batch that is served "
    "several times on end counts once. Or {alone:g} steps and three in four have eight rows or more of one class "
    "alone, which is seldom another than before",
    thresholds={
        "side": Threshold(8, "batches: enough for a histogram, few enough to speak soon"),
        "z": Threshold(6, "shuffled batches are exchangeable: 1e-9 of a Gaussian, asked at every second step"),
        "times": Threshold(1.4, "the largest of 128 halves is about 2.5 deviations above their mean"),
        "before": Threshold(1.2, "the largest of eight windows and more is seldom surpassed by a fifth"),
        "jump": Threshold(1.3, "drift alone gives 1, and the mean of three pairs scatters by a tenth"),
        "z_all": Threshold(10, "the last batches are drawn less evenly than a half of all"),
        "times_all": Threshold(1.8, "as above"),
        "least": Threshold(0.01, "nats below which nobody would call it a border"),
        "rate": STAGE,
        "alone": Threshold(12, "shuffled rows of two classes do so once in 2^84"),
    },
    cost="one histogram per step",
    meant="a curriculum, tasks or classes one after the other, or rows in the order of length or time",
    needs=(Probe.ROWS,),
    cause="data that is concatenated or sorted, not shuffled",
    fix="shuffle or mix before training",
    refuted_by="random halves that differ as much",
    explains=("loss-spike", "loss-diverges", "loss-plateau"),
)


@on_step(CORRUPT_BATCH)
def odd_rows(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    """Rows whose entropy is far outside that of all rows so far."""
    import numpy as np

    rows = history.rows
    if not rows.arrays or record.is_drawn:  # what a policy says changes as it learns
        return
    entropies = rows.row_entropies
    odd = _odd(rows, entropies)
    rows.odd_steps.append((len(odd), len(entropies)))
    if odd and _more_than_usual(rows, len(odd), len(entropies)):
        typical = float(median(rows.entropies))
        kind = "uniform" if entropies[odd[0]] > typical else "one token repeated"
        yield CORRUPT_BATCH.finding(
            severity="warning",
            step=record.number,
            where=f"rows {', '.join(map(str, odd[:8]))}",
            says=f"{len(odd)} of {len(entropies)} rows have token entropy {float(median(entropies[odd])):.1f} nats "
            f"({kind}), usual {typical:.1f}: they are not text like the rest.",
            sure=0.95,
            refuted_by=f"entropies of these rows near {typical:.1f}",
            evidence={"rows": odd[:64], "entropy": [round(float(entropies[i]), 3) for i in odd[:16]], "usual": typical},
        )
    if len(rows.odd_steps) == rows.odd_steps.maxlen:
        rows.odd_before += rows.odd_steps[0][0]
    rows.entropies.extend(np.delete(entropies, odd).tolist())


def _odd(rows: RowHistory, entropies: np.ndarray) -> list[int]:
    """Which rows of this step lie outside everything seen, by a margin: code, tables and prose scatter widely."""
    rule, known = CORRUPT_BATCH, rows.entropies
    if len(known) < 64 or rows.counts.sum(1).min() < 16:
        return []
    low, high = min(known), max(known)
    if low <= entropies.min() and entropies.max() <= high:
        return []
    middle = median(known)
    z = (entropies - middle) / max(1.4826 * median(abs(value - middle) for value in known), 0.02)
    up = (z > rule["up"]) & (entropies > high + rule["margin"] * (high - middle)) & (entropies > middle + rule["nats"])
    down = (z < -rule["down"]) & (entropies < min(low, middle - max(0.25 * middle, 0.3)) * rule["low"])
    odd: list[int] = (up | down).nonzero()[0].tolist()
    return odd


def _more_than_usual(rows: RowHistory, odd: int, count: int) -> bool:
    rule = CORRUPT_BATCH
    recent, total = (sum(pair[i] for pair in list(rows.odd_steps)[-4:]) for i in (0, 1))
    usual = max(1 / rule["rare"], rows.odd_before / max(1, rows.count))
    again = recent >= rule["again"] and recent > rule["usual"] * usual * total
    return odd >= max(2, rule["share"] * count) or again


@on_step(DATA_SORTED)
def border(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    """A border is suspected by the batches beside it, and said when the next ones, which had no part in that, agree."""
    import numpy as np

    from limpid.doctor.borders import inputs_stay, stays

    rule, rows, side = DATA_SORTED, history.rows, int(DATA_SORTED["side"])
    lately = rows.border is not None and record.number - rows.border < 4 * side
    if record.is_drawn or not rows.counted or rows.taken % 2 or lately:
        return
    recent, shuffle = list(rows.histograms), np.random.Generator(np.random.PCG64(record.number))
    if rows.suspected is None:
        found = _suspected(recent, shuffle)
        rows.suspected = None if found is None else (record.number, rows.taken, found)
        return
    at, taken, found = rows.suspected
    if rows.taken < taken + side:
        return
    rows.suspected = None
    again = stays(recent, side, shuffle)
    if again is None or again.z < rule["z"] or again.between < again.largest:
        return
    rows.border, at = record.number, at - round(side * record.number / rows.taken) + 1
    stage = any(at - side <= begun <= record.number for begun in (history.stage, history.jump) if begun is not None)
    if inputs_stay(rows.moments, side, shuffle):
        yield _labelled_anew(record.number, at, found)
        return
    yield rule.finding(
        severity="notice" if stage else "warning",
        step=record.number,
        where=f"step {at}",
        says=f"the distribution of tokens changes at about step {at} (Jensen-Shannon {found.between:.3f} nat between "
        f"the {side} batches before and after, {found.halves:.3f} between random halves of them) and stays: "
        + (
            "the loop set another rate then, or froze other weights."
            if stage
            else "the data is in order of source, and a jump of the loss there is the border."
        ),
        cause="another stage of training, it seems" if stage else "",
        fix="nothing, if that is meant" if stage else "",
        sure=0.5 if stage else 0.9,
        evidence={"between": found.between, "halves": found.halves, "z": found.z, "again": again.between, "at": at},
    )


def _labelled_anew(step: int, at: int, found: Border) -> Finding:
    """Rows in the order of a source would come with other inputs, too."""
    return DATA_SORTED.finding(
        severity="notice",
        step=step,
        where=f"step {at}",
        says=f"the distribution of labels changes at about step {at} (Jensen-Shannon {found.between:.3f} nat) and "
        "stays, while that of the inputs does not: the same data with other labels.",
        cause="labels that the run makes anew, as of clusters, it seems",
        fix="nothing, if that is meant",
        sure=0.6,
        refuted_by="inputs that change with the labels",
        evidence={"between": found.between, "halves": found.halves, "z": found.z, "at": at},
    )


def _suspected(recent: list[np.ndarray], shuffle: np.random.Generator) -> Border | None:
    """The last batches against those before them, where they differ as batches of one source never did so far."""
    from limpid.doctor.borders import against_all, earlier_blocks, earlier_borders, jump, last_border

    rule, side = DATA_SORTED, int(DATA_SORTED["side"])
    if len(recent) < 2 * side:
        return None
    whole = against_all(recent, side, shuffle, rule["least"]) if len(recent) >= 6 * side else None
    apart = (
        whole is not None
        and whole.z > rule["z_all"]
        and whole.between > rule["times_all"] * max(whole.largest, earlier_blocks(recent, side))
    )
    last = last_border(recent, side, shuffle, 0.0 if apart else rule["least"])
    if last is None:
        return None
    jumps = last.z >= rule["z"] and last.between >= rule["times"] * last.largest
    jumps &= last.between >= rule["before"] * earlier_borders(recent, side) and jump(recent, side) > rule["jump"]
    return last if apart or jumps else None


@on_step(DATA_SORTED)
def one_class_a_batch(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    """All rows of a step have one class, step after step, and then another."""
    rule, classes = DATA_SORTED, list(history.rows.only_class)
    alone = [kind for kind in classes if kind is not None]  # a batch across a border has two
    if len(alone) < max(rule["alone"], 0.75 * len(classes)) or sorted(Counter(alone).values())[-2:-1] < [2]:
        return
    changes = sum(a != b for a, b in itertools.pairwise(alone))
    if changes <= len(alone) / 4:
        yield rule.finding(
            severity="warning",
            step=record.number,
            where="labels",
            says=f"{len(alone)} of the last {len(classes)} batches have rows of one class alone, and {changes} of them "
            "another than the one before: the rows are sorted by class.",
            cause="rows that are not shuffled",
            sure=0.95,
            refuted_by="a batch of two classes",
            evidence={"batches": len(alone), "changes": changes},
        )
