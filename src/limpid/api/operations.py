"""One step of any PyTorch model, every call of it redone, from Python: by a name instead of a `with` around it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from limpid.config.arguments import checked
from limpid.errors import ConfigError

if TYPE_CHECKING:
    from limpid.operations import Report


@checked
def trace_model(
    what: str | Path, text: str, precision: Literal["fp32", "bf16", "fp64"] = "fp32", keep: str | Path | None = None
) -> Report:
    """The first update of a Hugging Face folder's model on a text, as transformers computes it.

    keep  a new folder for what every call made
    """
    from limpid.files import user_path
    from limpid.operations.folder import of_folder
    from limpid.operations.step import recorded
    from limpid.schedule import TEXT_RATE
    from limpid.source import ModelFolder, open_source

    source = open_source(what)
    if not isinstance(source, ModelFolder):
        raise ConfigError(f"{what} is no Hugging Face folder, which transformers opens")
    return recorded(of_folder(source, text, TEXT_RATE, precision), None if keep is None else user_path(keep))


@checked
def trace_function(what: str, keep: str | Path | None = None) -> Report:
    """The step of MODULE:FUNCTION, or FILE.py:FUNCTION, which returns (model, optimizer, step).

    keep  a new folder for what every call made
    """
    from limpid.files import user_path
    from limpid.operations.function import of_function
    from limpid.operations.step import recorded

    return recorded(of_function(what), None if keep is None else user_path(keep))
