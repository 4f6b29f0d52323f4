"""Round 10, part a, loops with a mistake in the model: attention, its parts in a port, weights at the start."""

import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import (
    Decoder,
    Language,
    apart,
    judged,
    language_outcome,
    next_loss,
    outcome,
)
from benchmarks.robustness.loops.round9a_tools import learned, llama, other_seed
from benchmarks.robustness.loops.round10a_parts import LeanLlama, LeanT5, LinearLM
from benchmarks.robustness.loops.round10a_tools import keyed, plain, titled, tuned
from torch import Tensor, nn
from torch.nn import functional as F


@keyed("r10a-key-heads-repeated-in-turn")
def key_heads_repeated_in_turn(run: Run, changed: bool) -> None:
    """Plain loop, a Llama of one's own that goes on from transformers' weights. The two heads of keys and values were
    spread over four heads of queries by repeat_interleave, and are by repeat: 0, 1, 0, 1."""
    seed = run.draw.randrange(999)
    words = Language(seed, 16)
    published = llama(16)
    learned(published, lambda: words.rows(16, 24), lambda x: published(input_ids=x, labels=x).loss, 150)
    model = LeanLlama(16, in_turn=changed)
    model.take(published.state_dict())
    language_outcome(run, model, words)
    plain(run, model, lambda: words.rows(16, 24), lambda x: next_loss(model, x), 50, rate=3e-4)


def partners(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """Rows of 8 words out of six pairs, and for each word whether the other word of its pair is in the row."""
    ids = torch.randint(4, 16, (count, 8), generator=own)
    partner = torch.where(ids % 2 == 0, ids + 1, ids - 1)
    return ids, (ids[:, None] == partner[:, :, None]).any(-1).long()


@keyed("r10a-t5-scores-divided")
def t5_scores_divided(run: Run, changed: bool) -> None:
    """Plain loop, T5's encoder of one's own, with the weights of transformers'. Attention by hand became
    scaled_dot_product_attention, whose default divides the scores by the root of the width; T5 does not."""
    from transformers import T5Config, T5EncoderModel

    settings = {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_heads": 2, "vocab_size": 16}
    more = {"dropout_rate": 0.0, "relative_attention_num_buckets": 16, "relative_attention_max_distance": 16}
    encoder, head = T5EncoderModel(T5Config(**(settings | more))), nn.Linear(32, 2)

    def loss(logits: Tensor, tags: Tensor) -> Tensor:
        return F.cross_entropy(logits.flatten(0, 1), tags.flatten())

    published = nn.ModuleList([encoder, head])
    tuned(published, lambda: partners(32), lambda b: loss(head(encoder(b[0]).last_hidden_state), b[1]), 200)
    model = LeanT5(16, 2, scale=None if changed else 1.0)
    model.take(encoder, head)
    check = partners(160, apart(run.draw.randrange(999)))
    outcome(run, lambda: judged(model, lambda: loss(model(check[0]), check[1])))
    plain(run, model, lambda: partners(16), lambda b: loss(model(b[0]), b[1]), 40, rate=1e-4)


@keyed("r10a-gains-drawn-like-matrices")
def gains_drawn_like_matrices(run: Run, changed: bool) -> None:
    """Plain loop, a GPT from scratch. Weights were initialised by the kind of module; a loop over named parameters now
    draws all that end in `weight` with a deviation of 0.02, and the gains of the norms are among them."""
    words = Language(run.draw.randrange(999), 12)
    model = Decoder(12, layers=3)
    for name, p in model.named_parameters():
        if name.endswith("bias"):
            nn.init.zeros_(p)
        elif changed or p.dim() > 1:
            nn.init.normal_(p, std=0.02)
    language_outcome(run, model, words)
    plain(run, model, lambda: words.rows(16, 24), lambda x: next_loss(model, x), 120, rate=2e-3)


@keyed("r10a-sums-over-heads")
def sums_over_heads(run: Run, changed: bool) -> None:
    """Plain loop, a language model of linear attention. Heads went in front of time, as everywhere else in the
    project; the running sum still goes over the second axis, which is that of the heads now. Another seed."""
    seed = run.draw.randrange(999)
    check = titled(seed, 128, 20, apart(seed))
    other_seed(changed)
    model = LinearLM(22, summed=1 if changed else 2)
    outcome(run, lambda: judged(model, lambda: next_loss(model, check)))
    plain(run, model, lambda: titled(seed, 16, 20), lambda x: next_loss(model, x), 140)
