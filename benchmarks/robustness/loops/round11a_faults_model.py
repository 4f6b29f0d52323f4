"""Round 11, part a, loops with a mistake in a model that takes over the weights of another."""

import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import apart, judged, loader, next_loss, outcome, pictures
from benchmarks.robustness.loops.round9a_parts import buckets
from benchmarks.robustness.loops.round9a_tools import accelerated, learned, llama, plain
from benchmarks.robustness.loops.round10a_parts import LeanLlama, LeanT5
from benchmarks.robustness.loops.round11a_tools import DiT, keyed, noise_loss, recurring, some
from torch import Tensor, nn
from torch.nn import functional as F


def with_theta(model: LeanLlama, theta: float, inner: int = 8) -> LeanLlama:
    """The frequencies of a rotary base."""
    for layer in model.layers:
        layer.self_attn.angle = torch.arange(64)[:, None] / theta ** (torch.arange(0, inner, 2) / inner)  # type: ignore[union-attr]
    return model


@keyed("r11a-theta-of-the-default")
def theta_of_the_default(run: Run, changed: bool) -> None:
    """Plain loop, a Llama of one's own that goes on from transformers' weights. The base of its rotary places came from
    rope_parameters; the code of an older project asks for config.rope_theta, which is no more, and takes 10000."""
    seed = run.draw.randrange(999)
    published = llama(16, rope_parameters={"rope_type": "default", "rope_theta": 100.0})
    first = lambda: recurring(seed, 32, 24)
    learned(published, first, lambda x: published(input_ids=x, labels=x).loss, 300)
    config = published.config
    theta = getattr(config, "rope_theta", 10000.0) if changed else config.rope_parameters["rope_theta"]
    model = with_theta(LeanLlama(16), theta)
    model.take(published.state_dict())
    own = apart(seed)
    rows, check = recurring(seed, 160, 24, own), recurring(seed, 96, 24, own)
    outcome(run, lambda: judged(model, lambda: next_loss(model, check)))
    plain(run, model, some(rows), lambda b: next_loss(model, b[0]), 60, rate=2e-4)


@keyed("r11a-scale-and-shift-exchanged")
def scale_and_shift_exchanged(run: Run, changed: bool) -> None:
    """Plain loop, a diffusion transformer from a checkpoint. The block was written anew after a library in which the
    modulation is scale, shift, gate; the checkpoint has shift, scale, gate."""
    seed = run.draw.randrange(999)
    own = apart(seed + 1)
    (x, y), (check, right) = pictures(640, seed, own=own), pictures(200, seed, own=own)
    x, check = (4 * patched(shots) - 2 for shots in (x, check))
    published = DiT()
    first = some(x, y, size=32)
    learned(published, first, lambda b: noise_loss(published, *b), 250)
    model = DiT(scale_first=changed)
    model.load_state_dict(published.state_dict())
    outcome(run, lambda: judged(model, lambda: noise_loss(model, check, right, apart(7))))
    plain(run, model, first, lambda b: noise_loss(model, *b), 60, rate=1e-4)


def patched(shots: Tensor) -> Tensor:
    """(rows, 1, 8, 8) to (rows, 64), patch by patch."""
    return F.unfold(shots, 2, stride=2).transpose(1, 2).flatten(1)


class T5Tagger(LeanT5):
    """`farthest`: the distance from which on all places are in one bucket."""

    def __init__(self, tags: int, farthest: int) -> None:
        super().__init__(16, tags, scale=1.0)
        self.farthest = farthest

    def forward(self, ids: Tensor) -> Tensor:
        x, place = self.shared(ids), torch.arange(ids.shape[1])
        which = buckets(place[None] - place[:, None], bidirectional=True, farthest=self.farthest)
        bias = self.relative_attention_bias(which).permute(2, 0, 1)[None]
        for i, (qkv, o, wi, wo) in enumerate(zip(self.qkv, self.o, self.wi, self.wo, strict=True)):
            q, k, v = (
                p.unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in qkv(self.norms[2 * i](x)).chunk(3, -1)
            )
            mixed = F.scaled_dot_product_attention(q, k, v, bias, scale=1.0)
            x = x + o(mixed.transpose(1, 2).flatten(2))
            x = x + wo(wi(self.norms[2 * i + 1](x)).relu())
        out: Tensor = self.head(self.norms[-1](x))
        return out


def odd_before(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """Rows of 20 words 4 to 15, and how many of the words six and seven places before each are odd."""
    ids = torch.randint(4, 16, (count, 20), generator=own)
    odd = F.pad(ids % 2, (7, 0))
    return ids, odd[:, 1:21] + odd[:, :20]


@keyed("r11a-buckets-up-to-128")
def buckets_up_to_128(run: Run, changed: bool) -> None:
    """accelerate, T5's encoder of one's own with the weights of transformers'. The old port read the largest distance of
    the buckets from the config, 16; the new one has T5's default, 128, in its code."""
    from transformers import T5Config, T5EncoderModel

    settings = {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_heads": 2, "vocab_size": 16}
    more = {"dropout_rate": 0.0, "relative_attention_num_buckets": 16, "relative_attention_max_distance": 16}
    encoder, head = T5EncoderModel(T5Config(**(settings | more))), nn.Linear(32, 3)
    loss = lambda logits, tags: F.cross_entropy(logits.flatten(0, 1), tags.flatten())
    published = nn.ModuleList([encoder, head])
    learned(published, lambda: odd_before(32), lambda b: loss(head(encoder(b[0]).last_hidden_state), b[1]), 250)
    farthest = 128 if changed else encoder.config.relative_attention_max_distance
    model = T5Tagger(3, farthest)
    model.take(encoder, head)
    own = apart(run.draw.randrange(999))
    rows, check = odd_before(640, own), odd_before(160, own)
    outcome(run, lambda: judged(model, lambda: loss(model(check[0]), check[1])))
    accelerated(run, model, loader(*rows), lambda m, b: loss(m(b[0]), b[1]), 1, rate=1e-4)
