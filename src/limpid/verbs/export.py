"""`limpid export`: a model for other programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from limpid.config.flags import read
from limpid.config.sampling import StoredAs


@dataclass(frozen=True)
class ExportFlags:
    """Write a model for other programs: a Hugging Face folder, or a GGUF file, which llama.cpp loads.

    limpid export last@200 model-200              a folder for transformers
    limpid export last model.gguf --stored-as q8_0
    limpid export last adapter --adapter          what --lora-rank trained
    """

    what: str = field(metadata={"positional": "MODEL"})
    """Run, name under runs/, `last`, each with @STEP for a checkpoint; or Hugging Face folder."""
    output: str = field(metadata={"positional": "OUTPUT"})
    """Folder to make, or file ending in .gguf."""
    stored_as: StoredAs = "fp32"
    """Format of matrices; q8_0, 32 integers of 8 bits and a scale, in GGUF alone."""
    adapter: bool = False
    """Write the low-rank factors alone, as peft keeps an adapter, for the model that the run started from."""


def verb(argv: Sequence[str]) -> int:
    flags = read("export", ExportFlags, argv)
    from rich.filesize import decimal

    from limpid.reporter import Reporter

    with Reporter() as reporter:
        reporter.progress(f"writing {flags.output}", 0)
        from limpid.api import export
        from limpid.model.weights import sizes_of
        from limpid.source import find_model

        written = export(flags.what, flags.output, flags.stored_as, adapter=flags.adapter)
        size = sum(file.stat().st_size for file in (written.rglob("*") if written.is_dir() else [written]))
        reporter.line(f"written {written} ({decimal(size)})")
        if sizes_of(find_model(flags.what)).head == "vocabulary_and_value":
            reporter.line(
                "without its value function, which stays in the run's checkpoints: limpid tune ppo goes on with it"
            )
    return 0
