"""Round 16b, honest and odd: fine-tuning, adapters, pupils, and models that become others."""

import copy
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import (
    Block,
    Classifier,
    Language,
    apart,
    class_outcome,
    documents,
    examples,
    fit,
    hf_trainer,
    judged,
    lit,
    loader,
    outcome,
    tiny_gpt2,
    train,
)
from benchmarks.robustness.loops.round6_tools import prepared
from benchmarks.robustness.loops.round7b_tools import near, taught
from benchmarks.robustness.loops.training import llama
from torch import Tensor, nn
from torch.nn import functional as F


def own_loss(model: Any, rows: Tensor) -> Tensor:
    """What a model of transformers says of rows of tokens."""
    out: Tensor = model(input_ids=rows, labels=rows).loss
    return out


@honest("r16b-adam-at-a-rate-of-one")
def adam_at_a_rate_of_one(run: Run) -> None:
    """Lightning, BART that says a row backwards in other words, with the schedule of "Attention is all you need" as
    the Annotated Transformer writes it. Adam is told a rate of 1.0 and stays so; a factor from width and step,
    0.00002 at first, makes it a small one, rises for ninety steps and falls with the root, and beta2 is 0.98."""
    from transformers import BartConfig, BartForConditionalGeneration

    key = 4 + torch.randperm(8, generator=apart(run.draw.randrange(999)))

    def pairs(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        source = torch.randint(4, 12, (count, 4), generator=own)
        return source, key[source - 4].flip(1)

    settings: dict[str, Any] = {
        "vocab_size": 12,
        "d_model": 48,
        "encoder_layers": 1,
        "decoder_layers": 1,
        "dropout": 0.0,
    }
    settings |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "max_position_embeddings": 16}
    settings |= {"encoder_ffn_dim": 96, "decoder_ffn_dim": 96, "decoder_start_token_id": 2}
    model = BartForConditionalGeneration(
        BartConfig(**settings, pad_token_id=1, bos_token_id=0, eos_token_id=2, init_std=0.15)
    )

    def loss(net: Any, batch: Any) -> Tensor:
        out: Tensor = net(input_ids=batch[0], labels=batch[1]).loss
        return out

    def optimizers(net: nn.Module) -> Any:
        optimizer = torch.optim.Adam(net.parameters(), lr=1.0, betas=(0.9, 0.98), eps=1e-9)
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda s: 48**-0.5 * min((s + 1) ** -0.5, (s + 1) * 90**-1.5)
        )
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]

    check = pairs(128, apart(1))
    outcome(run, lambda: judged(model, lambda: loss(model, check)))
    fit(run, lit(model, loss, optimizers), loader(*pairs(2560)), 150)


class Gated(nn.Module):
    """An encoder of texts in which each of eight heads has a gate between zero and one, drawn from a hard concrete."""

    def __init__(self, width: int = 32, heads: int = 8) -> None:
        super().__init__()
        self.heads, self.tokens = heads, nn.Embedding(16, width)
        self.places, self.qkv = nn.Embedding(16, width), nn.Linear(width, 3 * width)
        self.out, self.head, self.open = nn.Linear(width, width), nn.Linear(width, 3), nn.Parameter(torch.ones(heads))

    def gates(self) -> Tensor:
        noise = torch.rand(self.heads).clamp(1e-4, 1 - 1e-4).logit() if self.training else torch.zeros(self.heads)
        return (((noise + self.open) / 0.5).sigmoid() * 1.2 - 0.1).clamp(0, 1)

    def forward(self, ids: Tensor, keep: Tensor) -> Tensor:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        q, k, v = (p.unflatten(2, (self.heads, -1)).transpose(1, 2) for p in self.qkv(x).chunk(3, -1))
        seen = F.scaled_dot_product_attention(q, k, v, attn_mask=keep[:, None, None])
        h = self.out((seen * self.gates()[:, None, None]).transpose(1, 2).flatten(2)).relu()
        share = keep.float()[..., None]
        out: Tensor = self.head((h * share).sum(1) / share.sum(1))
        return out


@honest("r16b-heads-behind-gates-that-close")
def heads_behind_gates_that_close(run: Run) -> None:
    """accelerate, an encoder of texts whose heads are to be few (Louizos et al. 2018, Voita et al. 2019). Each head
    has a gate drawn anew in each pass, which is exactly zero or one most of the time, and a price for being open:
    heads have no gradient in steps in which they are shut, and gates go down although the loss of the task would
    have them up."""
    model = Gated()
    class_outcome(run, model, documents(256, apart(1)))

    def loss(m: Any, batch: Any) -> Tensor:
        inner = getattr(m, "module", m)
        return F.cross_entropy(m(*batch[:2]), batch[2]) + 0.02 * (inner.open + 1.1).sigmoid().sum()

    optimizer = torch.optim.Adam(
        [{"params": [p for n, p in model.named_parameters() if n != "open"]}, {"params": [model.open], "lr": 0.1}],
        lr=3e-3,
    )
    prepared(run, model, optimizer, loader(*documents(320)), loss, 6)


class Merged(nn.Module):
    """A model whose weights are those of a base plus what three tunings changed, times one number for each tensor."""

    def __init__(self, base: nn.Module, tuned: list[nn.Module]) -> None:
        super().__init__()
        self.base = copy.deepcopy(base).requires_grad_(False)
        names = [name for name, _ in base.named_parameters()]
        states = [dict(t.named_parameters()) for t in tuned]
        start = dict(base.named_parameters())
        self.changes = {n: torch.stack([s[n].detach() - start[n].detach() for s in states]) for n in names}
        self.shares = nn.Parameter(torch.full((len(names), len(tuned)), 0.1))

    def forward(self, ids: Tensor, keep: Tensor) -> Tensor:
        start = dict(self.base.named_parameters())
        weights = {
            name: start[name] + torch.tensordot(share, change, 1)
            for share, (name, change) in zip(self.shares, self.changes.items(), strict=True)
        }
        out: Tensor = torch.func.functional_call(self.base, weights, (ids, keep))
        return out


@honest("r16b-only-the-mixture-of-three-is-learned")
def only_the_mixture_of_three_is_learned(run: Run) -> None:
    """Plain loop, three tunings of one encoder put together as in AdaMerging (Yang et al. 2024). All weights stand
    still; what learns is how much of each tuning enters each tensor, 48 numbers, and there are no labels: the loss
    is the entropy of what is said about texts from all three fields, which falls where the mixture is a good
    one."""

    def field(count: int, at: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
        ids, keep, y = documents(count, own)
        return torch.where(ids > 0, ids + 15 * at, 0), keep, y

    def loss(m: nn.Module, batch: Any) -> Tensor:
        return F.cross_entropy(m(*batch[:2]), batch[2])

    def every(count: int, own: torch.Generator | None = None) -> tuple[Tensor, ...]:
        return tuple(torch.cat(parts) for parts in zip(*(field(count, at, own) for at in range(3)), strict=True))

    base = Classifier(words=46)
    taught(base, lambda: field(16, 0), loss, 8, 1e-3)
    tuned = [copy.deepcopy(base) for _ in range(3)]
    for at, net in enumerate(tuned):
        taught(net, lambda at=at: field(16, at), loss, 60, 3e-3)
    model = Merged(base, tuned)
    *shown, topics = every(150, apart(1))
    outcome(run, lambda: judged(model, lambda: (model(*shown).argmax(1) != topics).float().mean()))

    def unsure(m: nn.Module, batch: Any) -> Tensor:
        said = m(*batch).log_softmax(1)
        return -(said.exp() * said).sum(1).mean()

    train(run, model, torch.optim.Adam([model.shares], lr=1e-2), lambda: every(16)[:2], unsure, 60)


@honest("r16b-tuned-by-turning-alone")
def tuned_by_turning_alone(run: Run) -> None:
    """transformers' Trainer and PEFT, a Llama tuned to another text with orthogonal adapters (Qiu et al. 2023).
    Nothing is added to a matrix: it is turned, block by block, by a rotation that begins as the identity, so that
    lengths and angles of its columns stay as they were; half a thousandth is a common rate and here it is 0.02."""
    from peft import OFTConfig, get_peft_model

    seed = run.draw.randrange(999)
    language, base = Language(seed, first=4), llama(vocab_size=16, num_hidden_layers=1)
    taught(base, lambda: language.rows(16, 20), own_loss, 60)
    other = near(language, seed + 1, 0.6)
    other.first = 4
    targets = ["q_proj", "v_proj", "o_proj", "up_proj", "down_proj"]
    model = get_peft_model(base, OFTConfig(r=0, oft_block_size=8, target_modules=targets))
    check = other.rows(96, 20, apart(1))
    outcome(run, lambda: judged(model, lambda: own_loss(model, check)))
    rows = other.rows(320, 20)
    hf_trainer(run, model, examples(input_ids=rows, labels=rows), 70, learning_rate=2e-2).train()


@honest("r16b-learned-in-order-to-be-taken-away")
def learned_in_order_to_be_taken_away(run: Run) -> None:
    """transformers' Trainer and PEFT, a GPT-2 that is to lose bad habits (Zhang et al. 2023, adapters added and
    negated). LoRA is trained on nothing but the unwanted texts and gets better at them, which is what the loss
    says; afterwards it is subtracted from the model, and what is measured is how much likelier wanted texts then
    are than unwanted."""
    from peft import LoraConfig, get_peft_model

    seed = run.draw.randrange(999)
    good, bad = Language(seed, first=4), Language(seed + 1, first=4)
    base = tiny_gpt2()
    taught(base, lambda: torch.cat([good.rows(8, 20), bad.rows(8, 20)]), own_loss, 80)
    model = get_peft_model(base, LoraConfig(r=4, lora_alpha=8, target_modules=["c_attn", "c_fc"], fan_in_fan_out=True))
    wanted, unwanted = good.rows(96, 20, apart(1)), bad.rows(96, 20, apart(2))

    def negated() -> float:
        layers = [m for m in model.modules() if hasattr(m, "lora_A") and hasattr(m, "scaling")]
        for layer in layers:
            layer.scaling["default"] *= -0.5
        value = judged(model, lambda: own_loss(model, wanted) - own_loss(model, unwanted))
        for layer in layers:
            layer.scaling["default"] *= -2
        return value

    outcome(run, negated)
    rows = bad.rows(320, 20)
    hf_trainer(run, model, examples(input_ids=rows, labels=rows), 50, learning_rate=2e-3).train()


class Ladder(nn.Module):
    """A frozen GPT-2 that is read without a graph, and beside it a path of width 12 that it feeds at each layer."""

    def __init__(self, body: Any, width: int = 12) -> None:
        super().__init__()
        self.body, layers = body.requires_grad_(False), body.config.n_layer + 1
        self.down = nn.ModuleList(nn.Linear(body.config.n_embd, width) for _ in range(layers))
        self.side = nn.ModuleList(Block(width) for _ in range(layers))
        self.gates, self.up = nn.Parameter(torch.zeros(layers)), nn.Linear(width, body.config.n_embd)
        nn.init.zeros_(self.up.weight)
        nn.init.zeros_(self.up.bias)

    def forward(self, ids: Tensor) -> Tensor:
        with torch.no_grad():
            states = self.body(input_ids=ids, output_hidden_states=True).hidden_states
        h = self.down[0](states[0])
        for state, down, block, gate in zip(states, self.down, self.side, self.gates, strict=True):
            h = block(gate.sigmoid() * down(state) + (1 - gate.sigmoid()) * h)
        out: Tensor = self.body.lm_head(states[-1] + self.up(h))
        return out


@honest("r16b-a-ladder-beside-the-model")
def a_ladder_beside_the_model(run: Run) -> None:
    """accelerate, ladder side-tuning of a GPT-2 (Sung et al. 2022), so that nothing has to go back through the large
    model. The trained model is called under no_grad within the watched one and never changes; a narrow path reads
    its layers, and comes out through a matrix that begins at zero, for which reason the rest of the path has no
    gradient at first."""
    seed = run.draw.randrange(999)
    language, body = Language(seed), tiny_gpt2(12, n_layer=2)
    taught(body, lambda: language.rows(16, 20), own_loss, 60)
    other, model = near(language, seed + 1, 0.7), Ladder(body)

    def loss(m: nn.Module, batch: Any) -> Tensor:
        return F.cross_entropy(m(batch[0][:, :-1]).flatten(0, 1), batch[0][:, 1:].flatten())

    check = other.rows(96, 20, apart(1))
    outcome(run, lambda: judged(model, lambda: loss(model, (check,))))
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    prepared(run, model, optimizer, loader(other.rows(320, 20)), loss, 4)
