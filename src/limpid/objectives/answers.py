"""Log-probabilities of answers, which every objective on answers begins with: at speed, and as mathematics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from limpid.objectives.objective import Mean
from limpid.quantities import LOGITS, Quantity, model_quantities

if TYPE_CHECKING:
    from jaxtyping import Int
    from torch import Tensor

    from limpid.config import ModelConfig
    from limpid.maths.chain import Chain
    from limpid.model.kernels.token_log_probabilities import TokenScores
    from limpid.model.observe import Mode
    from limpid.model.transformer import Hidden, Transformer


def token_log_probabilities(
    model: Transformer,
    tokens: Int[Tensor, "answer position"],
    targets: Int[Tensor, "answer position"],
    mode: Mode | None = None,
    temperature: float = 1.0,
    with_entropy: bool = False,
) -> TokenScores:
    """Of each target under the model, nats, and the entropy there if asked for; both 0 where there is no target.

    The fast path never forms all logits. No gradient flows through the entropy.
    """
    from limpid.model.observe import FAST

    mode = mode or FAST
    model.require_vocabulary()
    hidden = model(tokens, path=mode.path, observe=mode.observe, form_logits=False)
    return scores_of(hidden, targets, mode, temperature, with_entropy)


def scores_of(
    hidden: Hidden,
    targets: Int[Tensor, "answer position"],
    mode: Mode,
    temperature: float = 1.0,
    with_entropy: bool = False,
) -> TokenScores:
    """The same, given where the forward pass ended."""
    from limpid.model.kernels import token_log_probabilities as kernel
    from limpid.objectives import losses

    if not mode.plain:
        matrix = hidden.output_matrix
        scores = kernel.token_log_probabilities(hidden.stream, matrix, targets, temperature, with_entropy)
        return scores._replace(log_probabilities=mode.report("token_log_probabilities", scores.log_probabilities))
    logits = mode.report("logits", hidden.logits)
    if temperature != 1:
        logits = mode.report("tempered_logits", losses.tempered(logits, temperature))
    every = mode.report("log_probabilities", losses.log_probabilities(logits))
    entropy = losses.entropy(every.detach(), targets) if with_entropy else None
    answered = losses.token_log_probabilities(every, targets)
    return kernel.TokenScores(mode.report("token_log_probabilities", answered), entropy)


def entropy_of(entropy: Tensor | None, mask: Tensor) -> Mean:
    """The mean over the tokens of the answers of a step, nats: a metric."""
    assert entropy is not None
    return Mean((entropy * mask).sum(), mask.sum())


def token_chain(chain: Chain, config: ModelConfig, temperature: float = 1.0, hidden: str | None = None) -> str:
    """The same in a chain that holds `tokens` and `targets`, and perhaps the last hidden state already; returns the
    name of the result."""
    from limpid.maths.alignment import tempered, token_log_probabilities
    from limpid.maths.loss import LogSoftmax
    from limpid.maths.transformer import hidden_states, logits_of

    logits = logits_of(chain, config, hidden or hidden_states(chain, config))
    if temperature != 1:
        logits = chain.apply("tempered_logits", tempered.operation(temperature=temperature), logits)
    whole = chain.apply("log_probabilities", LogSoftmax(), logits)
    return chain.apply("token_log_probabilities", token_log_probabilities.operation(), whole, "targets")


def token_quantities(config: ModelConfig, temperature: float = 1.0) -> tuple[Quantity, ...]:
    """What `token_chain` forms."""
    tempered = (Quantity("tempered_logits", LOGITS, "nats, up to a constant per position"),)
    return (
        *model_quantities(config),
        *(tempered if temperature != 1 else ()),
        Quantity("log_probabilities", LOGITS, "nats"),
        Quantity("token_log_probabilities", ("batch", "position"), "nats"),
    )
