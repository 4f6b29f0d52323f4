"""Several processes: what they should have in common, and what they should not."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from typing import TYPE_CHECKING

from limpid.doctor.finding import Finding
from limpid.doctor.rule import Probe, Rule, Threshold, on_step

if TYPE_CHECKING:
    from limpid.doctor.history import History
    from limpid.doctor.ranks import RankHistory, RankLines
    from limpid.doctor.step_record import StepRecord
    from limpid.doctor.watched import Watched

FAMILY = "distributed"
EXCHANGED = "one line in the processes' own key-value store and a look at the others', nobody waits"
OFTEN = "in the first three steps and every tenth"

RANKS_START_APART = Rule(
    "ranks-start-apart",
    FAMILY,
    detects="Ranks that start from different weights.",
    equation=r"\theta_r(t) - \theta_{r'}(t) = \text{const}",
    source="Li et al. 2020, section 3, arXiv:2006.15704",
    threshold="exact: sums in float64 of sampled elements differ before the first update",
    cost=f"8 sums of samples; {EXCHANGED}, once",
    needs=(Probe.RANKS,),
    cause="each rank draws its own weights, and nothing broadcasts them",
    fix="the same seed on every rank, or DistributedDataParallel, which broadcasts",
    meant="parts of one model (tensor, pipeline, experts), or a model for each rank (ensembles)",
    refuted_by="equal sums on all ranks",
    explains=("gradients-not-averaged",),
)

NOT_AVERAGED = Rule(
    "gradients-not-averaged",
    FAMILY,
    detects="Ranks that train alone: their weights drift apart.",
    equation=r"h(\theta_r) \neq h(\theta_{r'}) \;\text{after the step, equal before}",
    source="Li et al. 2020, section 3, arXiv:2006.15704",
    threshold="exact: sums in float64 of sampled elements differ after an update although they were equal before the "
    "first; or the wrapper that averages is never called",
    cost=f"8 sums of samples; {EXCHANGED}, {OFTEN}",
    needs=(Probe.RANKS, Probe.EVENTS),
    cause="the raw module was called instead of its wrapper, or every micro-batch ran inside no_sync()",
    fix="call the wrapper; leave no_sync() for all micro-batches but the last",
    meant="local steps between averages (local SGD, DiLoCo, federated), or ensembles",
    refuted_by="equal sums on all ranks",
    explains=("ranks-start-apart",),
)

SAME_DATA = Rule(
    "ranks-same-data",
    FAMILY,
    detects="Ranks that read the same rows.",
    equation=r"S = 0 \;\text{as}\; |g_b|^2 = |g_B|^2",
    source="McCandlish et al. 2018, eq. A.2, arXiv:1812.06162; row hashes",
    threshold="{share:.0%} or more of the row hashes of a step in common, in {steps:g} compared steps in a row",
    thresholds={
        "share": Threshold(0.5, "64-bit hashes do not collide; a few common rows are duplicates in the data"),
        "steps": Threshold(2, "one step may be a warm-up batch"),
    },
    cost=f"up to 64 hashes; {EXCHANGED}, {OFTEN}",
    needs=(Probe.RANKS, Probe.ROWS),
    cause="no DistributedSampler, or the same seed on every rank",
    fix="DistributedSampler with set_epoch, or a seed that holds the rank",
    meant="ranks that share rows by parts of the model or of the sequence, or a test on one batch",
    refuted_by="different row hashes on the ranks",
)

COMPUTES_WRONG = Rule(
    "rank-computes-wrong",
    FAMILY,
    detects="One rank whose gradient is unlike the others' before averaging: broken hardware or memory.",
    equation=r"\max |g_r| > 10^3 \max_{r' \ne r} |g_{r'}|",
    source="Dubey et al. 2024, section 3.3.4, arXiv:2407.21783; pytorch#84803",
    threshold="not finite on one rank alone, or a largest element {times:g} times that of every other rank and of the "
    "last 32 steps",
    thresholds={
        "times": Threshold(1000, "batches differ by ten or a hundred, one flipped exponent bit by 2^16 and more")
    },
    cost=f"the largest element of each gradient before it is averaged; {EXCHANGED}, each step",
    needs=(Probe.RANKS,),
    fix="exclude this machine; compute the batch on another",
    refuted_by="the same batch with the same gradient on another rank",
    explains=("loss-spike", "not-finite", "gradient-explodes", "loss-diverges"),
)


SLOW = Rule(
    "rank-is-slow",
    FAMILY,
    detects="One rank that all others wait for.",
    equation=r"t_r > 1.5\, \mathrm{median}_{r' \ne r}\, t_{r'}",
    source="Jiang et al. 2024, section 5.1, arXiv:2402.15627",
    threshold="reads its rows or passes its blocks {times:g} times as long as the others, and so much longer that "
    "it is {share:.0%} of the step, in the median of {steps:g} steps",
    thresholds={
        "times": Threshold(1.5, "neighbours on a shared machine differ by less, step after step"),
        "share": Threshold(0.1, "what the others wait for; less is not worth a search"),
        "steps": Threshold(10, "pauses of the machine, a checkpoint or an evaluation take fewer than half of them"),
    },
    cost=f"two clocks around each block; {EXCHANGED}, each step",
    needs=(Probe.RANKS,),
    cause="a slower device or disk, another program beside it, or more to read",
    fix="look at this machine's load, clock rate and disk; give it fewer rows, or leave it out",
    refuted_by="equal seconds on all ranks",
)


@on_step(NOT_AVERAGED)
def wrapper_not_called(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    """The wrapper that averages gradients among processes was never called."""
    info = watched.info
    if watched.processes == 1 or info.outer is info.model or info.compiled:
        return
    if record.inner_called and not record.outer_called:
        wrapper = type(info.outer).__name__
        yield NOT_AVERAGED.finding(
            severity="fault",
            step=record.number,
            where=wrapper,
            says=f"the module inside {wrapper} is called, not the wrapper: gradients are never averaged, and every "
            "rank trains alone.",
            cause="ddp.module(x) instead of ddp(x)",
            fix="call the wrapper",
            meant=None,
            refuted_by="one call of the wrapper",
            evidence={"calls": len(record.calls)},
        )


@on_step(RANKS_START_APART, NOT_AVERAGED, SAME_DATA, COMPUTES_WRONG, SLOW, asks="rank_lines")
def compare(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    """Every step whose lines have come from all processes."""
    for lines in record.rank_lines:
        yield from apart(lines, history.ranks, None if _averages(watched) else "")
        yield from same_rows(lines, history, None if _averages(watched) else "")
        yield from one_rank_off(lines, history.ranks)
        yield from one_rank_slow(lines, history.ranks)


def _averages(watched: Watched) -> bool:
    """Whether a wrapper is to keep one model equal on all ranks, each with rows of its own."""
    from torch.nn.parallel import DistributedDataParallel

    return isinstance(watched.info.outer, DistributedDataParallel)


def apart(lines: RankLines, known: RankHistory, meant: str | None) -> Iterator[Finding]:
    if lines.first and lines.starts:
        known.start_gap = lines.gap(lines.starts)
        if known.start_gap > 0:
            yield RANKS_START_APART.finding(
                severity="fault",
                step=lines.number,
                where="weights",
                says=f"{lines.world} ranks start from different weights (sampled sums differ by {known.start_gap:.3g}) "
                "before the first update.",
                meant=meant,
                evidence={"gap": known.start_gap, "ranks": lines.world},
            )
    gap = lines.gap(lines.weights)
    if known.start_gap == 0 and gap > 0 and known.odd_rank is None:
        yield NOT_AVERAGED.finding(
            severity="fault",
            step=lines.number,
            where="weights",
            says=f"ranks hold different weights after step {lines.number} (sampled sums differ by {gap:.3g}) although "
            "they started equal: gradients are not averaged, or not all of them.",
            meant=meant,
            sure=0.98,
            evidence={"gap": gap, "ranks": lines.world},
        )


def same_rows(lines: RankLines, history: History, meant: str | None) -> Iterator[Finding]:
    if not all(lines.rows):
        return
    first, *others = (set(rows) for rows in lines.rows)
    common = min(len(first & other) / max(1, min(len(first), len(other))) for other in others)
    if history.in_a_row(SAME_DATA.slug, common >= SAME_DATA["share"]) == SAME_DATA["steps"]:
        yield SAME_DATA.finding(
            severity="fault",
            step=lines.number,
            where="data",
            says=f"all {lines.world} ranks got the same rows ({common:.0%} of {len(first)}): the global batch is "
            f"{len(first)} rows, not {len(first) * lines.world}.",
            meant=meant,
            evidence={"common": common, "ranks": lines.world},
        )


def one_rank_off(lines: RankLines, known: RankHistory) -> Iterator[Finding]:
    if not all(lines.local):
        return
    largest = [math.inf if value is None else value for _, value in lines.local]
    second, most = sorted(largest)[-2:]
    usual = max([*known.usual[-32:], min(largest), 1e-30])
    if most > COMPUTES_WRONG["times"] * max(second, usual) and math.isfinite(second):
        worst = largest.index(most)
        name, known.odd_rank = lines.local[worst][0], worst
        shown = "not a number" if not math.isfinite(most) else f"{most:.2g}"
        yield COMPUTES_WRONG.finding(
            severity="fault",
            step=lines.number,
            where=f"rank {worst}: {name}",
            says=f"rank {worst}'s gradient of {name} has an element of {shown} before averaging; the largest of the "
            f"other ranks is {second:.2g}.",
            cause=f"hardware or memory of rank {worst}, not the model",
            sure=0.9,
            evidence={"rank": worst, "largest": most, "others": second},
        )
    else:
        known.usual.append(max((value for value in largest if math.isfinite(value)), default=0.0))


def one_rank_slow(lines: RankLines, known: RankHistory) -> Iterator[Finding]:
    if lines.paces:
        known.paces.append(lines.paces)
    if len(known.paces) < SLOW["steps"]:
        return
    steps, known.paces = known.paces, []
    step = statistics.median(paces[0][-1] for paces in steps)
    for part, does in enumerate(("reads its rows", "passes its blocks")):
        seconds = [statistics.median(paces[rank][part] for paces in steps) for rank in range(lines.world)]
        slow = seconds.index(max(seconds))
        usual = statistics.median(seconds[:slow] + seconds[slow + 1 :])
        share = (seconds[slow] - usual) / step
        if seconds[slow] > SLOW["times"] * usual and share > SLOW["share"] and (slow, part) not in known.slow:
            known.slow.add((slow, part))
            yield SLOW.finding(
                severity="notice",
                step=lines.number,
                where=f"rank {slow}",
                says=f"rank {slow} {does} in {seconds[slow] * 1e3:.3g} ms a step, the others in {usual * 1e3:.3g} ms: "
                f"{share:.0%} of every step is spent waiting for it.",
                sure=0.9,
                evidence={"rank": slow, "seconds": seconds[slow], "others": usual, "share": share},
            )
