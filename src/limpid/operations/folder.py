"""A step of any model that transformers knows, from its folder: its own code, its own loss, one update by AdamW."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from limpid.config import UpdateConfig
from limpid.errors import CheckpointError, ConfigError, DataError, LimpidError
from limpid.files import MALFORMED, one_line, parse_json
from limpid.model.convert import refuse_pickles
from limpid.operations.inputs import Fed, fed
from limpid.operations.report import Again, Precision
from limpid.operations.step import Step
from limpid.source import ModelFolder

FORMATS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp64": torch.float64}


def of_folder(source: ModelFolder, text: str, rate: float, precision: Precision = "fp32") -> Step:
    """The first update of a model on a text, without dropout; no code that lies in the folder is run.

    rate  of AdamW; its other numbers, and clipping, are those of limpid's own training

    Raises  CheckpointError for what transformers does not load; DataError for a text that is too short
    """
    with _quiet():
        model = _opened(source, FORMATS[precision]).eval()
        given = fed(model, text, lambda: _tokenizer(source))
    given.said.append(precision)
    update = UpdateConfig()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=rate, betas=(update.beta1, update.beta2), eps=update.eps,
        weight_decay=update.weight_decay,
    )  # fmt: skip

    def take() -> Tensor:
        loss = _loss(model, given)
        loss.backward()
        if update.max_grad_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), update.max_grad_norm)
        optimizer.step()
        return loss.detach()

    title, loss = f"{source.title}: {type(model).__name__}", _explained(lambda: _loss(model, given), source)
    again = Again(str(source.path.resolve()), text, precision)
    return Step(model, optimizer, _explained(take, source), title, given.said, loss, again)


def _opened(source: ModelFolder, form: torch.dtype) -> Any:
    """transformers' model of a folder.

    Raises  CheckpointError, ConfigError
    """
    config = _config(source)
    refuse_pickles(source.path)
    transformers = _transformers(source)
    names = config.get("architectures") or []
    if "auto_map" in config and not any(hasattr(transformers, str(name)) for name in names):
        raise CheckpointError(f"{source} needs code of its own (auto_map in config.json), and limpid runs none of "
                              "a folder's: write its step in Python, `limpid trace FILE.py:FUNCTION`")  # fmt: skip
    kind = next((getattr(transformers, str(name)) for name in names if hasattr(transformers, str(name))), None)
    if kind is None:
        known = f"transformers {transformers.__version__} has no {names[0]}" if names else (
            "its config.json names no architectures, such as LlamaForCausalLM")  # fmt: skip
        raise CheckpointError(f"{source}: {known}: install a transformers that has it, or write its step in Python, "
                              "`limpid trace FILE.py:FUNCTION`")  # fmt: skip
    try:
        return kind.from_pretrained(source.path, dtype=form, use_safetensors=True, local_files_only=True,
                                    trust_remote_code=False)  # fmt: skip
    except Exception as error:  # of whatever kind: its configuration and weights are somebody else's
        raise CheckpointError(f"{source}: transformers does not load it: {_said(error)}") from error


def _config(source: ModelFolder) -> dict[str, Any]:
    try:
        found = parse_json(source.config_file.read_bytes())
    except (OSError, *MALFORMED) as error:
        raise CheckpointError(f"{source.config_file} cannot be read as JSON: download it again") from error
    if not isinstance(found, dict):
        raise CheckpointError(f"{source.config_file} holds {type(found).__name__}, expected an object of options")
    return found


def _transformers(source: ModelFolder) -> Any:
    try:
        import transformers
    except ImportError as error:
        raise ConfigError(f"{source} is of none of limpid's own families, and others need transformers: "
                          "pip install transformers") from error  # fmt: skip
    return transformers


def _tokenizer(source: ModelFolder) -> Any:
    """transformers' tokenizer of a folder."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(source.path, local_files_only=True, trust_remote_code=False)
    except Exception as error:
        raise CheckpointError(f"{source} has no tokenizer that transformers opens, and its model reads text: "
                              f"{_said(error)}") from error  # fmt: skip


def _loss(model: Any, given: Fed) -> Tensor:
    """The model's own loss, or a plain one of what it gives, which is said."""
    made = model(**given.given)
    loss = made.get("loss") if hasattr(made, "get") else None
    if loss is not None:
        return loss if loss.ndim == 0 else loss.mean()
    first = next(one for one in _tensors(made) if one.is_floating_point())
    given.said.append("half the mean square of its first output as the loss, as it forms none")
    return first.square().mean() / 2


def _tensors(made: Any) -> Iterator[Tensor]:
    if isinstance(made, Tensor):
        yield made
    for one in made.values() if hasattr(made, "values") and not isinstance(made, Tensor) else ():
        yield from _tensors(one)
    for one in made if isinstance(made, tuple | list) else ():
        yield from _tensors(one)


def _explained(take: Callable[[], Tensor], source: ModelFolder) -> Callable[[], Tensor]:
    """The same, but a refusal of transformers or PyTorch is one line."""

    def taken() -> Tensor:
        try:
            return take()
        except LimpidError:
            raise
        except Exception as error:
            raise DataError(f"{source}: its step cannot be taken on this: {_said(error)}; write the step in Python, "
                            "`limpid trace FILE.py:FUNCTION`") from error  # fmt: skip

    return taken


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {one_line(error)[:300]}"


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without transformers' own bars and notes, which stand between the lines of a report."""
    import warnings

    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(before)
