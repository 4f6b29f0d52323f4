"""Positions: whether rotary angles depend on distances alone, and whether positions are told apart."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from limpid.doctor.finding import Finding
from limpid.doctor.rule import Probe, Rule, Threshold, before_first_step

if TYPE_CHECKING:
    from limpid.doctor.exam import Exam

FAMILY = "positions"

ROTARY_NOT_RELATIVE = Rule(
    "rotary-not-relative",
    FAMILY,
    detects="Rotary positions on queries only, on keys only, or with two layouts.",
    equation=r"q_i \cdot k_j = f(i - j) \;\text{for a constant sequence}",
    source="Su et al. 2021, eq. 16, arXiv:2104.09864",
    threshold="a share of variance off the diagonals above {share:g} where queries or keys of equal tokens differ by "
    "more than {turned:g} of their size; or no such difference where a rotation is declared or computed; positions "
    "may be added where lengths differ by more than {length:g} and no angle is computed",
    thresholds={
        "share": Threshold(0.1, "0 when right, 0.97 with keys unrotated"),
        "length": Threshold(1e-2, "what is turned keeps its length, to two roundings of bfloat16"),
        "turned": Threshold(1e-3, "rounding of bfloat16 is 4e-3 of each element, of float32 6e-8"),
    },
    cost="one forward pass on one row of one repeated token",
    needs=(Probe.PARAMETERS, Probe.FORWARD, Probe.ATTENTION),
    fix="rotate queries and keys by the same function, with the same layout and positions",
    refuted_by="a share of 0",
)

POSITIONS_IGNORED = Rule(
    "positions-ignored",
    FAMILY,
    detects="A table of positions that is looked up at the same row for every position.",
    equation=r"p_i = p_j \;\text{for all } i, j",
    source="definition; Vaswani et al. 2017, section 3.5, arXiv:1706.03762",
    threshold="exact: one row for all of at least 8 positions, in a table that is called one of positions or has a row "
    "for each",
    cost="one forward pass before the first step",
    needs=(Probe.PARAMETERS, Probe.MODULES),
    cause="position ids that are all 0, or an index made with zeros_like where arange is meant",
    fix="position_ids = torch.arange(length), or leave them to the model",
    refuted_by="two rows that are looked up",
)


@before_first_step(ROTARY_NOT_RELATIVE)
def not_relative(exam: Exam) -> Iterator[Finding]:
    share, scores, rule = exam.attention.off_diagonal, exam.attention.of_one_token, ROTARY_NOT_RELATIVE
    if share is None or scores is None:
        return
    vectors = {"queries": scores.query[0].double(), "keys": scores.key[0].double()}
    if not all(bool(x.any()) for x in vectors.values()):
        return  # vectors of 0 are the same however they are turned
    turned = {name: bool((x - x[:, :1]).abs().max() > rule["turned"] * x.abs().max()) for name, x in vectors.items()}
    if not any(turned.values()):
        names = ("rope_theta", "rotary_base", "rope_parameters", "rope_scaling", "rotary_emb_base")
        declared = exam.info.declared(*names) is not None or exam.info.declared("positions") == "rotary"
        if declared or exam.attention.turns:
            yield _rotary(exam, "neither queries nor keys are rotated by their positions", 0.0)
    elif share > rule["share"]:
        one = [name for name, yes in turned.items() if not yes]
        lengths = [vectors[name].norm(dim=-1) for name, yes in turned.items() if yes]
        kept = all(bool((one - one[:, :1]).abs().max() <= rule["length"] * one.abs().max()) for one in lengths)
        two = "queries and keys are rotated in different layouts or angles"
        meant = None if kept or exam.attention.turns else "positions that are added to queries and keys"
        yield _rotary(exam, f"{one[0]} are not rotated" if one else two, share, meant)


def _rotary(exam: Exam, cause: str, share: float, meant: str | None = None) -> Finding:
    says = "no score depends on position"
    if share:
        says = f"scores should depend on i - j alone; {share:.0%} of their variance does not"
    return ROTARY_NOT_RELATIVE.finding(
        severity="fault",
        where=exam.info.first_mixing,
        says=f"for a row of one repeated token {says}: {cause}.",
        cause=cause,
        meant=meant,
        sure=0.98,
        evidence={"off_diagonal_share": share},
    )


@before_first_step(POSITIONS_IGNORED)
def one_position(exam: Exam) -> Iterator[Finding]:
    """A table of positions of which every position gets the same row."""
    flow, table = exam.flow, exam.info.embedding
    if flow is None or table is None:
        return
    declared = exam.info.declared("n_positions", "max_position_embeddings", "context_length", "block_size")
    for name in sorted(flow.one_row - {table[0]}):
        weight = exam.info.parameters.get(f"{name}.weight")
        rows = 0 if weight is None else int(weight.shape[0])
        if exam.info.of_positions(name) or rows == declared:
            yield POSITIONS_IGNORED.finding(
                severity="fault",
                where=name,
                says=f"{name} has {rows:,} rows, one for each position, but every position is given the same one: the "
                "model cannot tell where a token stands.",
                evidence={"rows": rows},
            )
            return
