"""The ways there are: our engine on several paths and in several formats, and transformers' model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from limpid.compare.taken import Taken
from limpid.config import ModelConfig
from limpid.data.batches import MicroBatch
from limpid.errors import CheckpointError, ConfigError, DataError
from limpid.maths.operation import Array
from limpid.maths.rounding import FORMATS
from limpid.model import Transformer
from limpid.model.cache import Cache
from limpid.model.lora import Adapter, load_adapter
from limpid.model.observe import FAST, Mode
from limpid.model.weights import load_weights
from limpid.objectives import NEXT_TOKEN, POLICY
from limpid.objectives.losses import log_probabilities
from limpid.source import Model, ModelFolder, find_model
from limpid.training.precision import FORMATS as DTYPES
from limpid.training.precision import NAMES
from limpid.training.record import Observation

ROWS, POSITIONS = 4, 48
"""Size of a batch of random tokens."""
SEED = 0


@dataclass(frozen=True)
class Way:
    """A model and a path through it."""

    spelled: str
    source: Model
    config: ModelConfig
    weights: dict[str, Tensor]
    path: str  # a key of PATHS
    precision: str
    adapter: Adapter | None = None
    merged: bool = False  # whether the adapter is added into the weights or stands beside them
    processes: int = 1  # that share the rows of the batch, one thread each

    def take(self, tokens: Array, targets: Array, *, backward: bool) -> Taken:
        """Everything that this way lets one see."""
        whole = {name: tensor.detach().double() for name, tensor in self.weights.items()}
        if self.adapter is not None:
            whole = self.adapter.merged(whole)
        taken = Taken(self.spelled, {name: tensor.numpy() for name, tensor in whole.items()}, tokens, targets)
        taken.roundings = 1 if self.adapter is None else 3  # the adapter's product and sum are rounded too
        compute = DTYPES[self.precision]
        kept = torch.promote_types(compute, torch.float32)
        taken.compute, taken.kept = FORMATS[self.precision], FORMATS[NAMES[kept]]
        taken.summed = taken.kept
        PATHS[self.path](self, taken, torch.from_numpy(tokens), torch.from_numpy(targets), backward)
        return taken

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


def way(spelled: str) -> Way:
    """MODEL[:WORD,…], a word being a path or a precision.

    Raises  ConfigError for an unknown word, CheckpointError for an unknown model
    """
    what, _, words = spelled.partition(":")
    path, precision, adapted, merged, processes = "plain", "fp32", None, False, 1
    for word in filter(None, words.split(",")):
        if word.startswith(("lora=", "merged=")):
            merged, adapted = word.startswith("merged="), Path(word.partition("=")[2])
        elif word.startswith("processes="):
            path, processes = "processes", _count(word)
        elif word in CHOSEN:
            path = word
        elif word in DTYPES:
            precision = word
        else:
            words_known = f"{', '.join(CHOSEN)}; {', '.join(DTYPES)}; lora=DIR, merged=DIR, processes=N"
            raise ConfigError(f"{spelled!r} asks for {word!r}: choose from {words_known}")
    source: Model = find_model(what)
    if path == "transformers" and not isinstance(source, ModelFolder):
        source = ModelFolder(source.run.model_folder)
        if not source.path.is_dir():
            raise CheckpointError(f"{what} has no model/ that transformers could load: let the run end first")
    config, weights = load_weights(source)
    adapter = None if adapted is None else load_adapter(adapted, config)
    if adapter is not None and path not in ("plain", "fast", "cached", *(("sampler",) if merged else ())):
        raise ConfigError(f"{spelled!r} takes an adapter on the path {path}: only plain, fast and cached can")
    return Way(spelled, source, config, weights, path, precision, adapter, merged, processes)


def _count(word: str) -> int:
    number = word.partition("=")[2]
    if not number.isdigit() or not 2 <= int(number) <= ROWS:
        raise ConfigError(f"{word!r} is no number of processes: take 2 to {ROWS}, for the batch has {ROWS} rows")
    return int(number)


def tokens_for(ways: tuple[Way, Way], text: str | None) -> tuple[Array, Array]:
    """A batch for both: a text, or random tokens, which leave nothing out; and the tokens that come next.

    Raises  ConfigError when the two models differ in shape, DataError when their tokenizers or the text do not fit
    """
    first, second = ways
    for name in ("vocab_size", "d_model", "num_layers", "num_heads", "num_kv_heads", "d_ff"):
        ours, theirs = getattr(first.config, name), getattr(second.config, name)
        if ours != theirs:
            raise ConfigError(
                f"{first.spelled} has {name} {ours}, {second.spelled} {theirs}: these are two models, not two ways"
            )
    length = min(first.config.context_length, second.config.context_length)
    if text is None:
        drawn = np.random.default_rng(SEED).integers(0, first.config.vocab_size, (ROWS, min(POSITIONS, length) + 1))
        return drawn[:, :-1], drawn[:, 1:]
    found = [_encoded(one, text) for one in ways]
    if found[0] != found[1]:
        at = next((i for i, (a, b) in enumerate(zip(*found, strict=False)) if a != b), min(map(len, found)))
        raise DataError(f"the two tokenizers differ from token {at} of the text on: the models never see the same")
    if not 2 <= len(found[0]) <= length + 1:
        raise DataError(f"the text has {len(found[0])} tokens, expected 2 to {length + 1}: shorten it")
    tokens = np.array([found[0]], dtype=np.int64)
    return tokens[:, :-1], tokens[:, 1:]


def _encoded(one: Way, text: str) -> list[int]:
    from limpid.data.tokenizer import load_tokenizer

    if not one.source.tokenizer_file.is_file():
        raise CheckpointError(f"{one.spelled} has no tokenizer.json: leave out --text, and random tokens are used")
    return list(load_tokenizer(one.source).encode(text))


Taking = Callable[[Way, Taken, Tensor, Tensor, bool], None]


def plain(one: Way, taken: Taken, tokens: Tensor, targets: Tensor, backward: bool) -> None:
    """Our engine on the path that forms every quantity."""
    model, observation = one.model(), Observation()
    loss = next_token_loss(model, tokens, targets, targets.numel(), Mode("plain", observation.observe))
    if backward:
        loss.backward()
    for name, parts in observation.values.items():
        see(taken, name, parts[0])
    for name, bars in observation.bars.items():
        taken.gradients[name] = bars[0].double().numpy()
    parameter_gradients(taken, model)


def fast(one: Way, taken: Taken, tokens: Tensor, targets: Tensor, backward: bool) -> None:
    """Our engine as it trains: fused, most quantities never formed."""
    ends(taken, one.model(), tokens, targets, backward)


def compiled(one: Way, taken: Taken, tokens: Tensor, targets: Tensor, backward: bool) -> None:
    """Our engine with its blocks compiled, as long runs train."""
    model = one.model().train()
    model.compile_blocks()
    try:
        ends(taken, model, tokens, targets, backward)
    except Exception as error:  # the compiler's own, of many kinds
        line = str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__
        raise ConfigError(f"{one.spelled} cannot be compiled on this machine: {line}") from error


def cached(one: Way, taken: Taken, tokens: Tensor, targets: Tensor, backward: bool) -> None:
    """Our engine fed one position at a time, keys and values kept."""
    model = one.model()
    cache = Cache(one.config, len(tokens), tokens.shape[1], model.compute, None)
    with torch.no_grad():
        logits = torch.cat([model(tokens[:, t : t + 1], cache) for t in range(tokens.shape[1])], 1)
    see(taken, "logits", logits)
    see(taken, "log_probabilities", log_probabilities(logits))


def sampler(one: Way, taken: Taken, tokens: Tensor, targets: Tensor, backward: bool) -> None:
    """The decoder that samples: first position as a prompt, the others one by one through compiled code."""
    from limpid.generate import Decoder

    decoder = Decoder(one.model())
    cache = Cache(one.config, len(tokens), tokens.shape[1], decoder.compute, None)
    with torch.no_grad():
        logits = torch.cat([decoder(tokens[:, t : t + 1], cache) for t in range(tokens.shape[1])], 1)
    see(taken, "logits", logits)
    see(taken, "log_probabilities", log_probabilities(logits))


def shared(one: Way, taken: Taken, tokens: Tensor, targets: Tensor, backward: bool) -> None:
    from limpid.compare.processes import take

    take(one, taken, tokens, targets, backward)


def theirs(one: Way, taken: Taken, tokens: Tensor, targets: Tensor, backward: bool) -> None:
    from limpid.compare.theirs import take

    take(one, taken, tokens, targets, backward)


PATHS: dict[str, Taking] = {
    "plain": plain,
    "fast": fast,
    "compiled": compiled,
    "cached": cached,
    "sampler": sampler,
    "transformers": theirs,
    "processes": shared,
}
CHOSEN = tuple(name for name in PATHS if name != "processes")
"""Paths that are chosen by their name alone."""


def ends(taken: Taken, model: Transformer, tokens: Tensor, targets: Tensor, backward: bool) -> None:
    """Logits, loss and parameter gradients of a path that shows no more."""
    loss = next_token_loss(model, tokens, targets, targets.numel())
    see(taken, "logits", model(tokens))
    see(taken, "loss", loss)
    if backward:
        loss.backward()
        parameter_gradients(taken, model)


def next_token_loss(model: Transformer, tokens: Tensor, targets: Tensor, labels: int, mode: Mode = FAST) -> Tensor:
    """The share of these rows in the mean over `labels`, nats."""
    batch = MicroBatch({"tokens": tokens.numpy(), "targets": targets.numpy()})
    return NEXT_TOKEN.loss({POLICY: model}, batch, labels, mode).value


def see(taken: Taken, name: str, value: Tensor) -> None:
    """Keep a value and the format it was in."""
    taken.values[name] = value.detach().double().numpy()
    taken.stored[name] = FORMATS[NAMES[value.dtype]]


def parameter_gradients(taken: Taken, model: Transformer) -> None:
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            taken.gradients[name] = parameter.grad.double().numpy()
