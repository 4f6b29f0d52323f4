"""A variant: a model, the path through it and the precision, as `MODEL:WORD,…` spells them; and a batch for two."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from limpid.config import ModelConfig, WeightFormat
from limpid.config.parallel import AXES, WORDS, Parallel, parallel_of, require_divides, typed
from limpid.data.batches import MicroBatch
from limpid.errors import CheckpointError, ConfigError, DataError
from limpid.files import user_path
from limpid.maths.operation import Array
from limpid.model import Transformer
from limpid.model.convert import step_of
from limpid.model.export import save_folder
from limpid.model.lora import Adapter
from limpid.model.observe import FAST, Mode
from limpid.model.peft_files import load_adapter
from limpid.model.weights import load_weights
from limpid.objectives import NEXT_TOKEN, POLICY
from limpid.run import Run
from limpid.source import Adapted, Checkpoint, Model, ModelFolder, find_model
from limpid.training.precision import FORMATS as DTYPES

Tokens = Int[Tensor, "row position"]
"""Ids of a batch; targets are those of the positions after."""
ROWS, POSITIONS = 4, 48
"""Size of a batch of random tokens."""
SEED = 0
PATHS = ("plain", "fast", "compiled", "cached", "sampler", "transformers", "trl")
"""Paths that are chosen by their name alone; processes, along the axes of a mesh, are another."""
ADAPTABLE = ("plain", "fast", "cached")
"""Paths that can carry an adapter beside the weights."""


@dataclass(frozen=True)
class Variant:
    """A model and a path through it."""

    label: str
    source: Model
    config: ModelConfig
    weights: dict[str, Tensor]
    path: str  # one of PATHS, or "processes"
    precision: str
    adapter: Adapter | None = None
    merged: bool = False  # whether the adapter is added into the weights or stands beside them
    weights_read: WeightFormat = "auto"  # how the sampler reads matrices
    parallel: Parallel = field(default_factory=Parallel)  # processes that take the step together, one thread each
    run: Run | None = None  # that the weights are from, where they are

    def model(self) -> Transformer:
        """The engine in this precision, ready to run; masters are float32 at least."""
        compute = DTYPES[self.precision]
        model = Transformer(self.config, compute).to(torch.promote_types(compute, torch.float32))
        model.load_state_dict(self.weights)
        if self.adapter is not None and self.merged:
            model.load_state_dict(self.adapter.merged(model.state_dict()))
        elif self.adapter is not None:
            self.adapter.attach(model)
        return model.eval()


def parse_variant(label: str) -> Variant:
    """MODEL[:WORD,…], a word being a path or a precision.

    Raises  ConfigError for an unknown word, CheckpointError for an unknown model
    """
    what, _, words = label.partition(":")
    path, precision, adapted, merged = "plain", "fp32", None, False
    axes: list[str] = []
    weights_read: WeightFormat = "auto"
    for word in filter(None, words.split(",")):
        if word.startswith(("lora=", "merged=")):
            merged, adapted = word.startswith("merged="), user_path(word.partition("=")[2])
        elif word.partition("=")[0] in ("processes", *WORDS):
            path = "processes"
            axes.append(word)
        elif word in PATHS:
            path = word
        elif word == "int8":
            path, weights_read = "sampler", "int8"
        elif word in DTYPES:
            precision = word
        else:
            of_processes = ", ".join(f"{axis}=N" for axis in ("processes", *AXES))
            words_known = f"{', '.join(PATHS)}; {', '.join(DTYPES)}; int8; lora=DIR, merged=DIR; {of_processes}"
            raise ConfigError(f"{label!r} asks for {word!r}: choose from {words_known}")
    if weights_read == "int8" and (path, precision) != ("sampler", "fp32"):
        raise ConfigError(
            f"{label!r} asks for int8, which is how the sampler reads matrices in fp32: leave out the rest"
        )
    parallel = _parallel(axes)
    source: Model = find_model(what)
    run = source.run if isinstance(source, Checkpoint) else None
    if path in ("transformers", "trl") and not isinstance(source, ModelFolder):
        source = _hugging_face_folder(source)
    config, weights = load_weights(source)
    adapter = None if adapted is None else load_adapter(adapted, config)
    if adapter is not None and path not in (*ADAPTABLE, *(("sampler",) if merged else ())):
        raise ConfigError(f"{label!r} takes an adapter on the path {path}: choose one of {', '.join(ADAPTABLE)}")
    require_divides(config, parallel)
    return Variant(label, source, config, weights, path, precision, adapter, merged, weights_read, parallel, run)


def _hugging_face_folder(model: Checkpoint | Adapted) -> ModelFolder:
    """A model as Hugging Face expects it: a run's model/ when that is of this step, else one for this process.

    Raises  ConfigError when no family can express it
    """
    from limpid.data.tokenizer_folder import load_tokenizer

    step = model.step if isinstance(model, Checkpoint) else None
    if isinstance(model, Checkpoint) and not model.averaged and step_of(model.run.model_folder) == step:
        return ModelFolder(model.run.model_folder)
    tokenizer, (config, weights) = load_tokenizer(model), load_weights(model)
    folder = Path(tempfile.mkdtemp(prefix="limpid-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    save_folder(
        folder / "model",
        config,
        {name: tensor.float() for name, tensor in weights.items()},
        tokenizer_json=tokenizer.to_json(),
        end_of_text=tokenizer.end_of_text,
        step=step,
    )
    return ModelFolder(folder / "model")


def _parallel(words: list[str]) -> Parallel:
    """The axes that words such as shard=2 and processes=4 name: as many processes as they multiply to, or as they say.

    Raises  ConfigError for a word that is wrong, and for more parts than the batch has rows
    """
    text = ",".join(word for word in words if not word.startswith("processes="))
    counts = [word.partition("=")[2] for word in words if word.startswith("processes=")]
    if counts and not (counts[-1].isdecimal() and int(counts[-1])):
        raise ConfigError(f"'processes={counts[-1]}' is no number of processes: take 2 to {ROWS}")
    parallel = parallel_of(text, int(counts[-1]) if counts else Parallel(**typed(text)).processes)
    if parallel.data > ROWS:
        raise ConfigError(
            f"'{','.join(words)}' deals rows out to {parallel.data}: take 2 to {ROWS}, for the batch has {ROWS} of them"
        )
    return parallel


def batch_for(
    variants: tuple[Variant, Variant], text: str | None
) -> tuple[Int[Array, "batch position"], Int[Array, "batch position"]]:
    """A batch for both: a text, or random tokens, which leave nothing out; and the tokens that come next.

    Raises  ConfigError when the two models differ in shape, DataError when their tokenizers or the text do not fit
    """
    first, second = variants
    for name in ("vocab_size", "d_model", "num_layers", "num_heads", "num_kv_heads", "d_ff"):
        sizes = getattr(first.config.resolved(), name), getattr(second.config.resolved(), name)
        if sizes[0] != sizes[1]:
            raise ConfigError(
                f"{first.label} has {name} {sizes[0]}, {second.label} {sizes[1]}: give two variants of one model"
            )
    length = min(first.config.context_length, second.config.context_length)
    if text is None:
        random = np.random.default_rng(SEED).integers(0, first.config.vocab_size, (ROWS, min(POSITIONS, length) + 1))
        return random[:, :-1], random[:, 1:]
    encoded = [_encode(variant, text) for variant in variants]
    if encoded[0] != encoded[1]:
        at = next((i for i, (a, b) in enumerate(zip(*encoded, strict=False)) if a != b), min(map(len, encoded)))
        raise DataError(f"the two tokenizers differ from token {at} of the text on: compare without --text")
    if not 2 <= len(encoded[0]) <= length + 1:
        raise DataError(f"the text has {len(encoded[0])} tokens, expected 2 to {length + 1}: shorten it")
    tokens = np.array([encoded[0]], dtype=np.int64)
    return tokens[:, :-1], tokens[:, 1:]


def _encode(variant: Variant, text: str) -> list[int]:
    from limpid.data.tokenizer_folder import load_tokenizer

    if not variant.source.tokenizer_file.is_file():
        raise CheckpointError(f"{variant.label} has no tokenizer.json: leave out --text, and random tokens are used")
    return list(load_tokenizer(variant.source).encode(text))


def mean_loss(
    model: Transformer,
    tokens: Tokens,
    targets: Tokens,
    labels: int,
    mode: Mode = FAST,
) -> Float[Tensor, ""]:
    """The share of these rows in the mean loss over `labels`, nats."""
    batch = MicroBatch({"tokens": tokens.numpy(), "targets": targets.numpy()})
    return NEXT_TOKEN.loss({POLICY: model}, batch, labels, mode).value
