"""What low-rank factors have learned: the change of each weight, against the weight that it changes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from torch import Tensor

from limpid.config.arguments import checked
from limpid.html import table, titled
from limpid.inspection.weights import Spectrum
from limpid.jsonable import jsonable
from limpid.model.weights import load_adapted
from limpid.reporter import SILENT, Reporter
from limpid.run import Run
from limpid.source import find_model

Array = np.ndarray
HEADS = ("", "rank\neff.", "σ₁", "‖ΔW‖\n/ ‖W‖", "ampli-\nfied", "in W's\nleading", "by\nchance")


@dataclass(frozen=True)
class Change:
    """ΔW of one weight W: its own singular values, and how it lies to those of W."""

    spectrum: Spectrum
    """Of ΔW, as many values as the factors have rank."""
    base_norm: float
    """‖W‖_F."""
    seen_by_base: float
    """‖Uᵀ W V‖_F in the directions U, V of ΔW."""
    in_leading: float
    """‖U_rᵀ ΔW V_r‖² / ‖ΔW‖² in the r leading directions of W, r the factors' rank."""

    @property
    def name(self) -> str:
        return self.spectrum.name

    @property
    def norm(self) -> float:
        """‖ΔW‖_F."""
        return float(np.sqrt(self.spectrum.squares.sum()))

    @property
    def relative(self) -> float:
        """‖ΔW‖_F / ‖W‖_F."""
        return self.norm / self.base_norm if self.base_norm else 0.0

    @property
    def amplification(self) -> float:
        """‖ΔW‖ against W in the directions of ΔW. Source: Hu et al. 2021, section 7.3, arXiv:2106.09685."""
        return self.norm / self.seen_by_base if self.seen_by_base else 0.0

    @property
    def by_chance(self) -> float:
        """The share in W's leading directions that a ΔW without any relation to W has: r² / (d_out d_in)."""
        rows, columns = self.spectrum.shape
        return len(self.spectrum.values) ** 2 / (rows * columns)

    def document(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "name": self.name, "shape": list(self.spectrum.shape), "rank": len(self.spectrum.values),
            "singular_values": [float(f"{value:.6g}") for value in self.spectrum.values],
            "effective_rank": self.spectrum.effective_rank, "norm": self.norm, "relative_norm": self.relative,
            "amplification": self.amplification, "in_leading_directions": self.in_leading, "by_chance": self.by_chance,
        }  # fmt: skip

    def row(self) -> tuple[str, ...]:
        """As a table shows it."""
        return (
            f"  {self.name.removesuffix('.weight')}",
            f"{self.spectrum.effective_rank:.1f}", f"{self.spectrum.values[0]:.3g}", f"{self.relative:.2%}",
            f"{self.amplification:.3g}×", f"{self.in_leading:.1%}", f"{self.by_chance:.1%}",
        )  # fmt: skip


@dataclass(frozen=True, repr=False)
class AdapterInspection:
    """What the factors of a run, or an adapter, have learned, weight by weight."""

    name: str
    rank: int
    scale: float
    changes: tuple[Change, ...]

    def __repr__(self) -> str:
        return f"AdapterInspection({self.name}: {len(self.changes)} weights changed, rank {self.rank})"

    def _repr_html_(self) -> str:
        heads = [head.replace("\n", " ") for head in HEADS]
        return titled(self.name, table([one.row() for one in self.changes], heads, numbers=range(1, len(HEADS))))

    def document(self) -> dict[str, Any]:
        """As plain values: what `limpid inspect --adapter --json` prints."""
        changes = [one.document() for one in self.changes]
        plain: dict[str, Any] = jsonable({"model": self.name, "rank": self.rank, "scale": self.scale, "maps": changes})
        return plain


@checked
def inspect_adapter(what: str | Path | Run = "last", *, reporter: Reporter = SILENT) -> AdapterInspection:
    """What low-rank factors have learned, against the weights that they change.

    what    run trained with lora_rank, RUN@STEP, an adapter's folder, or MODEL+ADAPTER
    Raises  CheckpointError when there is no such model; ConfigError for one without factors
    """
    source = find_model(what)
    weights, adapter = load_adapted(source)
    changes = []
    for number, (name, one) in enumerate(sorted(adapter.factors.items())):
        reporter.progress("singular values", number, len(adapter.factors))
        base = weights[name].double()
        changes.append(measured(name, base, one.merged(base) - base, one.rank))
    reporter.close()
    first = next(iter(adapter.factors.values()))
    return AdapterInspection(source.title, first.rank, first.scale, tuple(changes))


def measured(name: str, weight: Tensor, change: Tensor, rank: int) -> Change:
    """How the change of a weight lies to it, in float64."""
    base, delta = weight.double().numpy(), change.numpy()
    left, values, right = _svd(delta, rank)
    leading_left, _, leading_right = _svd(base, rank)
    inside, total = leading_left.T @ delta @ leading_right.T, float(np.square(values).sum())
    return Change(
        Spectrum(name, (delta.shape[0], delta.shape[1]), values),
        float(np.linalg.norm(base)),
        float(np.linalg.norm(left.T @ base @ right.T)) if total else 0.0,
        float(np.square(inside).sum()) / total if total else 0.0,
    )


def _svd(
    matrix: Float[Array, "row column"], rank: int
) -> tuple[Float[Array, "row rank"], Float[Array, " rank"], Float[Array, "rank column"]]:
    """The leading part of a matrix's decomposition."""
    left, values, right = np.linalg.svd(matrix, full_matrices=False)
    return left[:, :rank], values[:rank], right[:rank]
