"""limpid's models in lm-evaluation-harness: `lm_eval.simple_evaluate(model=LimpidLM("last"), tasks=[...])`.

Importing this module also registers the name, so that `model="limpid", model_args="pretrained=last"` works. Needs the
extra: pip install 'limpid[harness]'.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from lm_eval.api.model import LM
from lm_eval.api.registry import register_model

from limpid.config import Sampling
from limpid.errors import DataError
from limpid.evaluation.inputs import open_evaluated_model
from limpid.evaluation.tasks import pair_tokens, score_answers
from limpid.evaluation.token_scores import score_windows
from limpid.evaluation.windows import Windows
from limpid.generation import Decoder, complete
from limpid.loaded import open_model
from limpid.reporter import SILENT


@register_model("limpid")
class LimpidLM(LM):  # type: ignore[misc]  # the harness carries no types
    """A run or Hugging Face folder that answers the harness's three kinds of requests."""

    def __init__(self, pretrained: str = "last", max_gen_toks: int = 256, **unused: Any) -> None:
        super().__init__()
        self.evaluated = open_evaluated_model(str(pretrained))
        self.pretrained = str(pretrained)
        self.max_gen_toks = max_gen_toks
        self._decoder: Decoder | None = None

    def loglikelihood(self, requests: Sequence[Any]) -> list[tuple[float, bool]]:
        """ln p of each continuation of a context, and whether greedy decoding would write it."""
        pairs = [pair_tokens(self.evaluated, *request.args) for request in requests]
        answers = score_answers(self.evaluated, pairs, SILENT, "answering")
        return [(-answer.nats, answer.greedy) for answer in answers]

    def loglikelihood_rolling(self, requests: Sequence[Any]) -> list[float]:
        """ln p of each whole text, in full windows that share no target.

        Raises  DataError when the model has no token to start a text with
        """
        if self.evaluated.start is None:
            raise DataError(f"{self.evaluated.name} has no token to start a text with: the harness's rolling needs one")
        context = self.evaluated.transformer.config.context_length
        windows = Windows(context, context, "sliding", self.evaluated.start)
        texts = [np.array(self.evaluated.tokenizer.encode(request.args[0]), np.int64) for request in requests]
        rows = [(number, row) for number, text in enumerate(texts) for row in windows.of(text)]
        totals = [0.0] * len(texts)
        scores = score_windows(self.evaluated.transformer, (row for _, row in rows))
        for (number, _), window in zip(rows, scores, strict=True):
            totals[number] -= float(window.loss.sum(dtype=np.float64))
        return totals

    def generate_until(self, requests: Sequence[Any]) -> list[str]:
        """Continue each context until a stop string, the end of text, or as many tokens as were asked for."""
        return [self._continued(*request.args) for request in requests]

    def _continued(self, prompt: str, asked: dict[str, Any]) -> str:
        if self._decoder is None:
            self._decoder = Decoder(open_model(self.pretrained).transformer)  # it decodes on the processor
        tokenizer, context = self.evaluated.tokenizer, self.evaluated.transformer.config.context_length
        most = min(int(asked.get("max_gen_toks", self.max_gen_toks)), context - 1)
        until = asked.get("until") or []
        sampling = Sampling(
            max_new_tokens=most,
            temperature=float(asked.get("temperature", 1.0)) if asked.get("do_sample") else 0.0,
            top_p=float(asked.get("top_p", 1.0)),
            top_k=int(asked.get("top_k", 0)),
            stop=tuple(filter(None, [until] if isinstance(until, str) else until)),
        )
        tokens = tokenizer.encode(prompt)
        if len(tokens) > context - most:  # the end of the prompt is what is continued
            prompt = tokenizer.decode(tokens[len(tokens) - (context - most) :])
        return next(complete(self._decoder, tokenizer, [prompt], sampling)).text
