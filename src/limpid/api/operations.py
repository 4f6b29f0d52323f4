"""One step of any PyTorch model, every call of it redone, from Python: by a name instead of a `with` around it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from limpid.config.arguments import checked
from limpid.errors import ConfigError

if TYPE_CHECKING:
    from limpid.operations import Report
    from limpid.operations.what_if import WhatIf


@checked
def trace_model(
    what: str | Path,
    text: str,
    precision: Literal["fp32", "bf16", "fp64"] = "fp32",
    keep: str | Path | None = None,
    errors_of: Sequence[str] = (),
) -> Report:
    """The first update of a Hugging Face folder's model on a text, as transformers computes it.

    keep       a new folder for what every call made
    errors_of  numbers of the gradient whose error is accounted for beside the loss's, such as grad(NAME)
    """
    from limpid.files import user_path
    from limpid.operations.folder import of_folder
    from limpid.operations.step import recorded
    from limpid.schedule import TEXT_RATE
    from limpid.source import ModelFolder, open_source

    source = open_source(what)
    if not isinstance(source, ModelFolder):
        raise ConfigError(f"{what} is no Hugging Face folder, which transformers opens")
    step = of_folder(source, text, TEXT_RATE, precision)
    return recorded(step, None if keep is None else user_path(keep), errors_of)


@checked
def try_formats(
    what: str | Path,
    text: str | None,
    formats: dict[str, str],
    precision: Literal["fp32", "bf16", "fp64"] = "fp32",
) -> WhatIf:
    """What the loss of a Hugging Face folder's model on a text would be with some operations in another format.

    what     the folder, or a recording of such a step, which has its text and precision
    formats  patterns of modules' paths and formats, such as {"layers.3.*": "fp8"}
    """
    import torch

    from limpid.operations.folder import of_folder
    from limpid.operations.what_if import what_if
    from limpid.schedule import TEXT_RATE
    from limpid.source import KeptRecording, ModelFolder, open_source

    source = open_source(what)
    if isinstance(source, KeptRecording):
        from limpid.operations.again import try_again
        from limpid.operations.kept import read

        return try_again(read(source.path), formats)
    if not isinstance(source, ModelFolder):
        raise ConfigError(f"{what} is no Hugging Face folder, which transformers opens")
    if text is None:
        raise ConfigError(f"{what} reads a text, which is missing: give it as text")
    step = of_folder(source, text, TEXT_RATE, precision)
    assert step.loss is not None
    return what_if(step.model, step.loss, torch.get_rng_state(), formats)


@checked
def trace_function(what: str, keep: str | Path | None = None, errors_of: Sequence[str] = ()) -> Report:
    """The step of MODULE:FUNCTION, or FILE.py:FUNCTION, which returns (model, optimizer, step).

    keep       a new folder for what every call made
    errors_of  numbers of the gradient whose error is accounted for beside the loss's
    """
    from limpid.files import user_path
    from limpid.operations.function import of_function
    from limpid.operations.step import recorded

    return recorded(of_function(what), None if keep is None else user_path(keep), errors_of)
