"""What a model of transformers is fed with, and what it is asked for, by its class and what its forward takes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from limpid.errors import DataError

UNASKED = -100
"""The label of what is not asked for, in every loss of transformers."""
ONE_IN = 7
"""Of so many tokens one is masked."""
PICTURE = 224
"""Pixels along a side, where a configuration does not say."""
SECONDS, SAMPLES = 1, 16_000
"""Of noise that a model of speech hears."""


@dataclass
class Fed:
    """Arguments of a model's forward, and what they are in words."""

    given: dict[str, Any]
    said: list[str]


def fed(model: Any, text: str, tokenizer: Callable[[], Any]) -> Fed:
    """What a model is given for a text: tokens and labels of its kind, drawn pictures or noise where it sees or hears.

    tokenizer  opens it, when a model reads

    Raises  DataError for a text that is too short
    """
    taken = set(inspect.signature(model.forward).parameters)
    kind, first = type(model).__name__, str(getattr(model, "main_input_name", "input_ids"))
    found = Fed({}, [])
    if first == "pixel_values" or ("pixel_values" in taken and "return_loss" in taken):
        _pictures(model, kind, taken, found)
    elif first in ("input_values", "input_features"):
        _noise(model, first, found)
    if "input_ids" in taken or "labels" in taken:
        _text(model, kind, taken, text, tokenizer, found)
    if "return_loss" in taken:
        found.given["return_loss"] = True
        found.said.append("its own contrastive loss")
    if "use_cache" in taken:
        found.given["use_cache"] = False
    return found


def _text(model: Any, kind: str, taken: set[str], text: str, tokenizer: Callable[[], Any], found: Fed) -> None:
    """Tokens and labels, or labels alone where a model sees or hears."""
    config = model.config
    if "Image" in kind or "Segmentation" in kind or "Audio" in kind or found.given.keys() & {"labels"}:
        return
    if kind.endswith("ForSequenceClassification") and found.given:
        found.given["labels"] = torch.zeros(1, dtype=torch.long)
        found.said.append("class 0 as its label")
        return
    reader = tokenizer()
    tokens = torch.tensor([reader(text)["input_ids"]])
    _require(model, tokens)
    count = tokens.shape[1]
    if found.given and "labels" in taken and "return_loss" not in taken:  # hears, and writes or spells
        found.given["labels"] = tokens
        found.said.append(f"the text's {count} tokens as what it is to write")
        return
    found.given["input_ids"] = tokens.repeat(found.given["pixel_values"].shape[0], 1) if found.given else tokens
    said = f"{count} tokens of the text"
    if "attention_mask" in taken:
        found.given["attention_mask"] = torch.ones_like(found.given["input_ids"])
    if "return_loss" in taken:
        found.said.append(said)
    elif "start_positions" in taken:
        found.given |= {"start_positions": torch.tensor([0]), "end_positions": torch.tensor([count - 1])}
        found.said.append(f"{said}, all of it as the answer")
    elif "labels" not in taken:
        found.said.append(said)
    else:
        found.given["labels"], how = _labels(kind, config, reader, tokens, found.given)
        found.said.append(f"{said}, {how}")


def _labels(kind: str, config: Any, reader: Any, tokens: Tensor, given: dict[str, Any]) -> tuple[Tensor, str]:
    """What is asked for, and how that is said."""
    if "MaskedLM" in kind or kind.endswith("ForPreTraining"):
        masked = torch.zeros_like(tokens, dtype=torch.bool)
        masked[:, ONE_IN // 2 :: ONE_IN] = True
        masked[:, -1] |= not bool(masked.any())
        labels = torch.where(masked, tokens, UNASKED)
        if getattr(reader, "mask_token_id", None) is None:
            return labels, f"{int(masked.sum())} of them labels, not masked: its tokenizer has no mask"
        given["input_ids"] = torch.where(masked, reader.mask_token_id, tokens)
        return labels, f"{int(masked.sum())} of them masked and asked for"
    if "SequenceClassification" in kind:
        is_number = getattr(config, "num_labels", 2) == 1
        return (torch.zeros(1) if is_number else torch.zeros(1, dtype=torch.long)), "class 0 as its label"
    if "TokenClassification" in kind:
        return torch.zeros_like(tokens), "class 0 as the label of each"
    if "MultipleChoice" in kind:
        for name in ("input_ids", "attention_mask"):
            given[name] = torch.stack([tokens, tokens.flip(1)], 1) if name == "input_ids" else torch.ones(
                1, 2, tokens.shape[1], dtype=torch.long)  # fmt: skip
        return torch.zeros(1, dtype=torch.long), "against itself backwards, the first to be chosen"
    if "NextSentence" in kind:
        return torch.zeros(1, dtype=torch.long), "class 0 as its label"
    if getattr(config, "is_encoder_decoder", False):
        return tokens, "to be read and written again"
    return tokens, "each a label"


def _require(model: Any, tokens: Tensor) -> None:
    """Raise DataError for a text that no step is taken on."""
    count = tokens.shape[1]
    sizes = [getattr(one, "vocab_size", None) for one in (getattr(model.config, "text_config", None), model.config)]
    words = next((size for size in sizes if isinstance(size, int)), None)
    if count < 2:
        raise DataError(f"the text has {count} tokens, expected 2 at least: every token but the first is a label")
    if words is not None and int(tokens.max()) >= words:
        raise DataError(f"token {int(tokens.max())} lies outside the model's vocabulary of {words}: tokenizer and "
                        "model do not belong together")  # fmt: skip


def _pictures(model: Any, kind: str, taken: set[str], found: Fed) -> None:
    """Two pictures of noise, and a class for each, or for each pixel."""
    config = getattr(model.config, "vision_config", model.config)
    size = getattr(config, "image_size", None) or PICTURE
    height, width = (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))
    channels = int(getattr(config, "num_channels", 3))
    drawn = torch.randn(2, channels, height, width, generator=torch.Generator().manual_seed(0))
    found.given["pixel_values"] = drawn.to(model.dtype)
    found.said.append(f"2 drawn pictures of {height} × {width}")
    if "labels" not in taken:
        return
    classes = int(getattr(model.config, "num_labels", 2))
    if "Segmentation" in kind:
        found.given["labels"] = torch.arange(2 * height * width).view(2, height, width) % classes
        found.said.append("classes in turn as the pixels' labels")
    elif "ImageClassification" in kind:
        found.given["labels"] = torch.arange(2) % classes
        found.said.append("the first classes as their labels")


def _noise(model: Any, first: str, found: Fed) -> None:
    """A second of noise, as samples or as a spectrum."""
    noise = torch.Generator().manual_seed(0)
    if first == "input_values":
        found.given[first] = torch.randn(1, SECONDS * SAMPLES, generator=noise).to(model.dtype)
        found.said.append(f"{SECONDS} s of noise")
        return
    config = model.config
    frames = 2 * int(getattr(config, "max_source_positions", 1500))
    bands = int(getattr(config, "num_mel_bins", 80))
    found.given[first] = torch.randn(1, bands, frames, generator=noise).to(model.dtype)
    found.said.append(f"noise of {bands} bands and {frames} frames")
