"""The model to decode with: of a run, at its newest checkpoint, or of a Hugging Face folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from limpid.errors import CheckpointError
from limpid.model import Transformer
from limpid.model.convert import load_model
from limpid.run import find_run

if TYPE_CHECKING:
    from limpid.data.tokenizer import Tokenizer


def open_model(what: str | Path) -> tuple[Transformer, Tokenizer]:
    """Model, ready to run in float32, and tokenizer.

    Raises  CheckpointError when there is no such model, or it has no tokenizer
    """
    from limpid.data.tokenizer import Tokenizer

    path = Path(what)
    if (path / "config.json").is_file() and not (path / "config.toml").is_file():
        if not (path / "tokenizer.json").is_file():
            raise CheckpointError(f"{path} has no tokenizer.json: save its tokenizer there, as AutoTokenizer does")
        return load_model(path), Tokenizer.load(path / "tokenizer.json")
    run = find_run(path)
    from limpid.training.checkpoint import read_weights

    model = Transformer(run.read_config().model)
    model.load_state_dict(read_weights(run, run.latest_checkpoint(), model.config))
    return model.eval(), Tokenizer.load(run.tokenizer_file)
