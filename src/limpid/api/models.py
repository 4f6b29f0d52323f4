"""Models, from Python: opened, and written for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from limpid.config.arguments import checked
from limpid.config.sampling import StoredAs
from limpid.errors import CheckpointError, ConfigError
from limpid.files import user_path
from limpid.run import Run

if TYPE_CHECKING:
    from limpid.data.tokenizer import Tokenizer
    from limpid.model import Transformer


@checked
def load(what: str | Path | Run) -> tuple[Transformer, Tokenizer]:
    """Model and tokenizer of a run, or of a Hugging Face folder."""
    from limpid.loaded import open_model

    opened = open_model(what, head="any")
    return opened.transformer, opened.tokenizer


@checked
def export(what: str | Path | Run, output: str | Path, stored_as: StoredAs = "fp32", *, adapter: bool = False) -> Path:
    """Write a model for other programs, low-rank factors added in: a Hugging Face folder, or a file ending in .gguf.

    what       run, RUN@STEP, RUN@ema, or Hugging Face folder
    stored_as  of matrices; q8_0 (blocks of 32 numbers, 8 bits each) in GGUF alone
    adapter    the factors alone, as peft keeps them, for the model that the run started from
    Raises     CheckpointError for an output that is there already; ConfigError for what the other format cannot express
    """
    from limpid.data.tokenizer_folder import load_tokenizer
    from limpid.loaded import conversation_of
    from limpid.model.export import save_folder
    from limpid.model.gguf_file import save_gguf
    from limpid.model.weights import load_weights, write_adapter
    from limpid.source import Checkpoint, find_model
    from limpid.training.precision import FORMATS

    source, file = find_model(what), user_path(output)
    if file.exists():
        raise CheckpointError(f"{file} exists already: name another output, or move it away")
    is_gguf = file.suffix.lower() == ".gguf"
    if stored_as == "q8_0" and not is_gguf:
        raise ConfigError("stored_as is q8_0, which Hugging Face's folders do not have: name a file that ends in .gguf")
    if adapter:
        if is_gguf:
            raise ConfigError(f"{file} would be a GGUF file, and an adapter is a folder: name one")
        write_adapter(file, source, FORMATS[stored_as])
        return file
    tokenizer = load_tokenizer(source)
    config, weights = load_weights(source)
    text, end = tokenizer.to_json(), tokenizer.end_of_text
    if is_gguf:
        save_gguf(file, config, weights, name=source.name, tokenizer_json=text, end_of_text=end, stored_as=stored_as)
    else:
        kept = {name: tensor.to(FORMATS[stored_as]) for name, tensor in weights.items()}
        step = source.step if isinstance(source, Checkpoint) else None
        said = conversation_of(tokenizer)
        save_folder(file, config, kept, tokenizer_json=text, end_of_text=end, step=step, conversation=said)
    return file
