"""Models by their names on the Hugging Face hub: its library's cache first, the network for what that lacks."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from limpid.errors import CheckpointError, ConfigError
from limpid.files import MALFORMED, one_line, parse_json

NAME = re.compile(r"(?P<repository>[\w.-]+(?P<of_somebody>/[\w.-]+)?)(@(?P<revision>[\w./-]+))?", re.ASCII)
READ = ("*.json", "*.safetensors", "*.jinja")
"""Files that limpid reads of a model; never a pickle."""


def is_name(what: str) -> bool:
    """Whether this could be ORG/NAME or ORG/NAME@REVISION."""
    found = NAME.fullmatch(what)
    return found is not None and found["of_somebody"] is not None


def cached(name: str) -> Path | None:
    """The folder of a name, ORG/NAME or ORG/NAME@REVISION, in the hub's cache; None where there is none.

    It may lack what nobody asked for yet. Nothing is fetched.
    """
    found = NAME.fullmatch(name)
    if found is None or (found["revision"] is not None and found["of_somebody"] is None):  # NAME@STEP is a run's
        return None
    try:
        return _snapshot(found, local_files_only=True)
    except (ConfigError, OSError, ValueError):  # its library is missing, nothing is there, or it can be no name
        return None


def fetch(name: str, files: Sequence[str] = READ) -> Path:
    """The folder of ORG/NAME with a model, or with these files, from the network as far as the cache lacks them.

    Raises  CheckpointError for what the hub does not give, ConfigError where its library is not installed
    """
    found = NAME.fullmatch(name)
    if found is None or found["of_somebody"] is None:
        raise CheckpointError(f"{name} is no name on the Hugging Face hub, which is ORG/NAME")
    try:
        folder = _snapshot(found, allow_patterns=list(files))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{name} is no run or folder here, not in the Hugging Face cache, and the hub does not "
                              f"give it: {_why(error, found['repository'])}") from error  # fmt: skip
    if files is READ and lacks_weights(folder):
        raise CheckpointError(f"{name} has no whole model in safetensors, on the hub or in its cache ({folder}): take "
                              "another, or save it again in a current transformers")  # fmt: skip
    return folder


def lacks_weights(folder: Path) -> bool:
    """Whether a model's folder has no weights, or not all of those that its index names."""
    if any((folder / name).is_file() for name in ("model.safetensors", "adapter_model.safetensors")):
        return False
    try:
        named = parse_json((folder / "model.safetensors.index.json").read_bytes())["weight_map"].values()
        return not all((folder / str(file)).is_file() for file in named)
    except (OSError, *MALFORMED):
        return True


def _snapshot(found: re.Match[str], **how: Any) -> Path:
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.utils.tqdm import disable_progress_bars
    except ImportError as error:
        raise ConfigError("names on the hub need huggingface_hub: pip install 'limpid[hub]'") from error
    if not sys.stderr.isatty():
        disable_progress_bars()
    return Path(snapshot_download(found["repository"], revision=found["revision"], **how))


def _why(error: BaseException, repository: str) -> str:
    """A refusal of the hub in a few words, and the way out."""
    kinds = {kind.__name__ for kind in type(error).__mro__}
    if "GatedRepoError" in kinds:
        return f"accept its licence at https://huggingface.co/{repository}, then run `hf auth login`"
    if "RepositoryNotFoundError" in kinds:
        return "there is none of this name, or it is private (`hf auth login`)"
    if "RevisionNotFoundError" in kinds:
        return "it has no such revision"
    if "OfflineModeIsEnabled" in kinds or "outgoing traffic has been disabled" in str(error):
        return "HF_HUB_OFFLINE forbids to ask it"
    if "LocalEntryNotFoundError" in kinds:
        return "the network does not reach it"
    return one_line(error)[:120]
