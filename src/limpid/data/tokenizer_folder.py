"""A tokenizer in the folder of a run or model: kept there with how it begins, ends and converses, and found again."""

from __future__ import annotations

import json
from pathlib import Path

from limpid.data.folder_settings import GENERATION, SETTINGS, TEMPLATE, read_settings
from limpid.data.tokenizer import Tokenizer
from limpid.errors import CheckpointError
from limpid.files import explained, write_atomically
from limpid.manifest import MANIFEST, damage_within, write_manifest
from limpid.run import TOKENIZER_FILES, Run
from limpid.source import Adapted, Checkpoint, Model


def write_tokenizer(folder: Path, tokenizer: Tokenizer) -> None:
    """Keep a tokenizer in a run's folder, with how it begins, ends and converses, so that `load_tokenizer` finds it."""
    write_atomically(folder / TOKENIZER_FILES[0], tokenizer.to_json().encode())
    if tokenizer.has_settings:
        _write_settings(folder, tokenizer)
    write_manifest(folder, TOKENIZER_FILES)


def _write_settings(folder: Path, tokenizer: Tokenizer) -> None:
    ids = {"bos_token_id": tokenizer.start, "eos_token_id": sorted(tokenizer.ends)}
    for name, content in ((SETTINGS, tokenizer.words), (GENERATION, ids)):
        write_atomically(folder / name, (json.dumps(content, ensure_ascii=False) + "\n").encode())
    if tokenizer.chat_template is not None:
        write_atomically(folder / TEMPLATE, tokenizer.chat_template.text.encode())


def tokenizer_damage(run: Run) -> str | None:
    """What is wrong with the tokenizer of a run; None when it is as it was written, or does not say."""
    with explained(f"cannot read {run.tokenizer_file}"):
        return damage_within(run.path)


def load_tokenizer(source: Model) -> Tokenizer:
    """The tokenizer of a run or of a Hugging Face folder.

    Raises  CheckpointError when it has none
    """
    if not source.tokenizer_file.is_file():
        ours = isinstance(source, Checkpoint)
        way = "bring it back, model/ has a copy" if ours else "save its tokenizer there, as AutoTokenizer does"
        raise CheckpointError(f"{source} has no tokenizer.json: {way}")
    if isinstance(source, Checkpoint) and (wrong := tokenizer_damage(source.run)):
        raise CheckpointError(
            f"{wrong}; bring the run's own back, of which model/ has a copy, and what it was tuned from; or delete "
            f"{source.run.path / MANIFEST} if only that is damaged"
        )
    tokenizer = Tokenizer.load(source.tokenizer_file)
    folders = {
        one.path: None
        for one in (source, source.base if isinstance(source, Adapted) else source)
        if not isinstance(one, Checkpoint)
    }
    if isinstance(source, Checkpoint) and (source.run.path / SETTINGS).is_file():  # it was tuned from such a folder
        folders = {source.run.path: None}
    if folders:
        tokenizer.take_settings(read_settings(*folders))
    return tokenizer
