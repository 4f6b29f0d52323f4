"""A model inspected on a text: what is inside it, and the curvature of its loss."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from limpid.config.arguments import checked
from limpid.files import user_path
from limpid.inspection.document import document
from limpid.inspection.landscape import ROWS, Landscape, measure_landscape
from limpid.inspection.model_and_text import open_model_and_text
from limpid.inspection.notebook import page
from limpid.inspection.structure import Structure, measure_structure
from limpid.reporter import SILENT, Reporter
from limpid.run import Run

if TYPE_CHECKING:
    from limpid.data.tokenizer import Tokenizer
    from limpid.model import Transformer


@dataclass(frozen=True, repr=False)
class Inspection:
    """What was measured in a model."""

    structure: Structure
    landscape: Landscape | None  # where it was asked for
    seconds: float

    def __repr__(self) -> str:
        sample, seen = self.structure.sample, self.structure.attribution
        spelled = sample.tokenizer.token_text(seen.token)
        around = "" if self.landscape is None else f", sharpness {self.landscape.sharpness.largest:.4g}"
        return (
            f"Inspection({sample.name}: {len(sample.shown)} tokens of {sample.origin}, logit of {spelled!r} "
            f"{seen.logit:+.4f}{around})"
        )

    def _repr_html_(self) -> str:
        return page(self.structure, self.landscape)

    def document(self) -> dict[str, Any]:
        """As plain values: what `limpid inspect --json` prints, but for the names of pictures."""
        return document(self.structure, self.landscape, self.seconds)

    @checked
    def draw(self, folder: str | Path) -> list[Path]:
        """Pictures of attention, spectra and, where it was measured, the landscape, into a folder.

        Raises  ConfigError when matplotlib is not installed
        """
        place = user_path(folder)
        return self.structure.draw(place) + ([] if self.landscape is None else self.landscape.draw(place))


@checked
def inspect(
    what: str | Path | Run | tuple[Transformer, Tokenizer] = "last",
    text: str | None = None,
    *,
    position: int = -1,
    token: str | None = None,
    word: tuple[str, ...] = (),
    landscape: bool = False,
    reporter: Reporter = SILENT,
) -> Inspection:
    """Who wrote a logit, logit lens, attention, singular values, dead neurons; sharpness and noise with `landscape`.

    what      run, RUN@STEP, Hugging Face folder, or a model and its tokenizer; the last two need a text
    position  whose next-token logit is taken apart: 0 is the first, -1 the last
    token     which token's logit; the likeliest when left out
    word      one: its neighbours in the embedding; three, a b c: what is to c as b is to a
    Raises    CheckpointError when there is no such model; ConfigError for a text, position or word that does not fit
    """
    began = time.perf_counter()
    sample = open_model_and_text(what, text)
    if landscape:
        sample.rows(ROWS)  # a text that is too short is refused before anything is computed
    structure = measure_structure(sample, position, token, word, reporter)
    around = measure_landscape(sample, reporter) if landscape else None
    reporter.close()
    return Inspection(structure, around, time.perf_counter() - began)
