"""A checkpoint that is asked what comes next: the whole distribution, and where its heads look."""

from __future__ import annotations

import base64
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from limpid.files import is_number
from limpid.source import Checkpoint
from limpid.view.answers import Refused
from limpid.view.documents.play import Choice, PlayDocument, PlayToken
from limpid.view.folder import Folder
from limpid.view.questions import PlayQuestion, read

if TYPE_CHECKING:
    from limpid.loaded import LoadedModel

LIKELIEST = 200
"""Tokens that are told by their text."""
HELD = 2
"""Models that are held in memory: two are looked at side by side."""
LONGEST = 100_000
"""Letters of a prompt."""
LOGITS_AT_ONCE = 1 << 24
"""Logits that are formed at once: 64 MB."""
MODEL = re.compile(r"(?P<run>[^@]+)(?:@(?P<step>\d{1,18}|best|ema))?")


@dataclass
class Play:
    """The models of a folder of runs."""

    folder: Folder
    _held: dict[str, LoadedModel] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def ask(self, asked: dict[str, Any]) -> PlayDocument:
        """What a model says of the next token after a prompt, or after tokens.

        Raises  Refused, LimpidError for what cannot be asked
        """
        question = read(PlayQuestion, asked)
        model, prompt, tokens = question.model, question.prompt, question.tokens
        if len(prompt) > LONGEST:
            raise Refused(f"prompt has {len(prompt):,} letters: at most {LONGEST:,} are read")
        with self._lock:  # PyTorch's threads are one pool
            opened = self._opened(self._checkpoint(model))
            from limpid.generation.completion import encode_prompt

            given = prompt if tokens is None else _ids(tokens, opened.transformer.config.vocab_size)
            ids = encode_prompt(opened.transformer, opened.tokenizer, given)
            return _said(model, opened, ids, attention=question.attention)

    def _checkpoint(self, model: str) -> Checkpoint:
        """RUN, RUN@STEP, RUN@best or RUN@ema of the folder."""
        found = MODEL.fullmatch(model)
        if found is None:
            raise Refused(f"model is {model[:80]!r}: expected a run, or RUN@STEP, RUN@best, RUN@ema")
        run, word = self.folder.run(found["run"]), found["step"] or ""
        step = int(word) if is_number(word) else run.best_checkpoint() if word == "best" else run.latest_checkpoint()
        if step not in run.checkpoint_steps():
            raise Refused(f"{found['run']} holds no checkpoint after step {step}", 404)
        self.folder.checkpoint(found["run"], step)
        return replace(Checkpoint(run, step), averaged=word == "ema")

    def _opened(self, source: Checkpoint) -> LoadedModel:
        from limpid.loaded import open_model

        key = f"{source} {(source.path / 'model.safetensors').stat().st_mtime_ns}"
        found = self._held.pop(key, None) or open_model(source)
        self._held[key] = found  # the newest stands last
        for old in list(self._held)[:-HELD]:
            del self._held[old]
        return found


def _ids(tokens: tuple[int, ...], vocabulary: int) -> tuple[int, ...]:
    """Tokens that were given by their numbers.

    Raises  Refused for what are none of the model's
    """
    if not tokens or not all(0 <= one < vocabulary for one in tokens):
        raise Refused(f"tokens is no list of whole numbers from 0 to {vocabulary - 1}")
    return tokens


def _said(model: str, opened: LoadedModel, ids: Sequence[int], *, attention: bool) -> PlayDocument:
    """One pass over the tokens, on the path that forms every quantity."""
    import torch

    from limpid.model.observe import Mode

    transformer, weights = opened.transformer, dict[str, Any]()

    def listen(name: str, value: Any) -> Any:
        if attention and name.endswith("attention.weights"):
            weights[name] = value[0, :, -1].float()
        return value

    with torch.inference_mode():
        inputs = torch.tensor([list(ids)], device=transformer.device)
        hidden = transformer.hidden(inputs, mode=Mode("plain", listen))[0]
        likely: list[float | None] = [None]
        matrix = transformer.output_matrix.to(hidden.dtype)
        logits = torch.zeros(0)
        rows = max(1, LOGITS_AT_ONCE // len(matrix))
        for first in range(0, len(ids), rows):
            logits = (hidden[first : first + rows] @ matrix.T).float()
            if not torch.isfinite(logits.amax(-1)).all():
                raise transformer.diverged()
            after = inputs[0, first + 1 : first + 1 + len(logits)]
            found = logits[: len(after)].log_softmax(-1).gather(-1, after[:, None])
            likely += found.exp()[:, 0].tolist()
        last = logits[-1]
        chances = last.double().softmax(-1)
        bits = -(chances * chances.clamp_min(1e-300).log2()).sum()
        best = last.argsort(descending=True, stable=True)[:LIKELIEST].tolist()
    text = opened.tokenizer.token_text
    found_next = tuple(Choice(one, text(one), float(last[one]), float(chances[one])) for one in best)
    looked = tuple(tuple(tuple(head) for head in layer.tolist()) for layer in weights.values())
    return PlayDocument(
        model=model,
        prompt=tuple(PlayToken(one, text(one), chance) for one, chance in zip(ids, likely, strict=True)),
        next=found_next,
        rest=max(0.0, 1.0 - sum(one.probability for one in found_next)),
        entropy=float(bits),
        logits=base64.b64encode(last.cpu().numpy().astype(np.dtype("<f4")).tobytes()).decode(),
        attention=looked if attention else None,
        context_length=transformer.config.context_length,
    )
