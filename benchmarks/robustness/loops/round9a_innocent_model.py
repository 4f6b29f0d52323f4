"""Round 9, part a, innocent changes of the model: other kernels, other classes, other parts with the same meaning."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, innocent
from benchmarks.robustness.loops.round5_tools import (
    Block,
    Examples,
    Language,
    apart,
    documents,
    fit,
    hf_trainer,
    judged,
    language_outcome,
    lit,
    next_loss,
    outcome,
)
from benchmarks.robustness.loops.round9a_parts import Gated, Llama, Scaled
from benchmarks.robustness.loops.round9a_tools import (
    accelerated,
    bart,
    bert,
    gpt2,
    llama_settings,
    other_seed,
    plain,
    translations,
)
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader


@innocent("r9a-eager-to-sdpa")
def eager_to_sdpa(run: Run, changed: bool) -> None:
    """transformers' Trainer, BERT with padding. attn_implementation went from "eager" to "sdpa": the same attention by
    another kernel."""
    own = apart(run.draw.randrange(999))
    train, check = documents(480, own), documents(192, own)
    kernel = "sdpa" if changed else "eager"
    model = bert("BertForSequenceClassification", num_labels=3, attn_implementation=kernel)

    def batch(ids: Tensor, keep: Tensor, y: Tensor) -> dict[str, Tensor]:
        return {"input_ids": ids, "attention_mask": keep.long(), "labels": y}

    kept = batch(*check)
    outcome(run, lambda: judged(model, lambda: model(**kept).loss))
    data = Examples([batch(*row) for row in zip(*train, strict=True)])
    hf_trainer(run, model, data, 110, learning_rate=3e-3).train()


class GateAndUp(nn.Module):
    """SwiGLU whose gate and input are one matrix."""

    def __init__(self, of: Gated) -> None:
        super().__init__()
        self.gate_up_proj = nn.utils.skip_init(nn.Linear, of.w1.in_features, 2 * of.w1.out_features, bias=False)
        self.down_proj = of.w2
        with torch.no_grad():
            self.gate_up_proj.weight.copy_(torch.cat([of.w1.weight, of.w3.weight]))

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up_proj(x).chunk(2, -1)
        out: Tensor = self.down_proj(F.silu(gate) * up)
        return out


@innocent("r9a-gate-and-up-in-one")
def gate_and_up_in_one(run: Run, changed: bool) -> None:
    """accelerate, a Llama of one's own. Gate and input of SwiGLU are one matrix with the same numbers, the norm in its usual
    lines became nn.RMSNorm with the same epsilon."""
    words = Language(run.draw.randrange(999), 12)
    rows = words.rows(640, 24, apart(run.draw.randrange(999)))
    model = Llama(12)
    if changed:
        for layer in model.layers:
            layer.feed_forward = GateAndUp(layer.feed_forward)
        for parent in [model, *model.layers]:
            for name, part in list(parent.named_children()):
                if isinstance(part, Scaled):
                    setattr(parent, name, nn.RMSNorm(32, eps=1e-6))
    language_outcome(run, model, words)
    data: Any = DataLoader(rows, 16, shuffle=True)  # type: ignore[arg-type]
    accelerated(run, model, data, next_loss, 3)


@innocent("r9a-mistral-for-llama")
def mistral_for_llama(run: Run, changed: bool) -> None:
    """Plain loop, transformers. LlamaForCausalLM became MistralForCausalLM of the same sizes and without a window, which
    is the same network under another name; position_ids are now given, as the model would make them."""
    import transformers

    words = Language(run.draw.randrange(999), 12, first=4)
    kind = "Mistral" if changed else "Llama"
    more = {"sliding_window": None} if changed else {}
    settings = getattr(transformers, f"{kind}Config")(**llama_settings(16), **more)
    model = getattr(transformers, f"{kind}ForCausalLM")(settings)
    check = words.rows(96, 24, apart(901))
    outcome(run, lambda: judged(model, lambda: model(input_ids=check, labels=check).loss))

    def batch() -> dict[str, Tensor]:
        ids = words.rows(16, 24)
        out = {"input_ids": ids, "labels": ids}
        return out | {"position_ids": torch.arange(24).expand(16, -1)} if changed else out

    plain(run, model, batch, lambda b: model(**b).loss, 100)


@innocent("r9a-neighbours-or-halves-turned")
def neighbours_or_halves_turned(run: Run, changed: bool) -> None:
    """Plain loop, a Llama of one's own from scratch. Rotary places turned pairs of neighbouring numbers, now they turn pairs
    of the two halves: with weights that are drawn, an equal network whose numbers lie in another order."""
    words = Language(run.draw.randrange(999), 12)
    model = Llama(12, pairs=not changed)
    language_outcome(run, model, words)
    plain(run, model, lambda: words.rows(16, 24), lambda rows: next_loss(model, rows), 130)


class Stack(nn.Module):
    """A GPT of blocks by hand, or of PyTorch's encoder layers with a causal mask."""

    def __init__(self, words: int, ready_made: bool) -> None:
        super().__init__()
        self.tokens, self.places, self.ready_made = nn.Embedding(words, 32), nn.Embedding(48, 32), ready_made
        if ready_made:
            layer = nn.TransformerEncoderLayer(32, 2, 64, 0.0, F.gelu, batch_first=True, norm_first=True)
            self.blocks: nn.Module = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            for name, p in self.blocks.named_parameters():
                if "self_attn" in name or "linear1" in name:
                    nn.init.uniform_(p, -(32**-0.5), 32**-0.5)
                elif "linear2" in name:
                    nn.init.uniform_(p, -(64**-0.5), 64**-0.5)
        else:
            self.blocks = nn.Sequential(Block(32), Block(32))
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, words, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        if self.ready_made:
            x = self.blocks(x, mask=nn.Transformer.generate_square_subsequent_mask(ids.shape[1]), is_causal=True)
        else:
            x = self.blocks(x)
        out: Tensor = self.head(self.norm(x))
        return out


@innocent("r9a-encoder-of-the-library")
def encoder_of_the_library(run: Run, changed: bool) -> None:
    """Plain loop, a small GPT. Blocks by hand gave way to nn.TransformerEncoderLayer with norm_first and a causal mask, whose
    weights are drawn by the same rule as before, in another order."""
    words = Language(run.draw.randrange(999), 12)
    other_seed(changed)
    model = Stack(12, changed)
    language_outcome(run, model, words)
    plain(run, model, lambda: words.rows(16, 24), lambda rows: next_loss(model, rows), 150)


@innocent("r9a-more-places-than-needed")
def more_places_than_needed(run: Run, changed: bool) -> None:
    """Lightning, GPT-2. The table of places was made longer for later use; rows are as long as before, the rest is never
    read. All that is drawn after it, and the order of rows, is another draw."""
    words = Language(run.draw.randrange(999), 12, first=4)
    rows, check = words.rows(480, 24, apart(run.draw.randrange(999))), words.rows(96, 24, apart(901))
    model = gpt2(16, n_positions=128 if changed else 32)
    outcome(run, lambda: judged(model, lambda: model(input_ids=check, labels=check).loss))
    rule = lambda net: torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=0.01)
    told = lit(model, lambda m, b: m(input_ids=b, labels=b).loss, rule)
    fit(run, told, DataLoader(rows, 16, shuffle=True), 120, gradient_clip_val=1.0)  # type: ignore[arg-type]


@innocent("r9a-activations-computed-again")
def activations_computed_again(run: Run, changed: bool) -> None:
    """transformers' Trainer, BART with dropout. gradient_checkpointing=True: activations are computed again in backward,
    with the same random numbers."""
    own = apart(run.draw.randrange(999))
    table = 4 + torch.randperm(12, generator=own)
    train, check = translations(640, table, own), translations(128, table, own)
    model = bart(16, dropout=0.05)
    outcome(run, lambda: judged(model, lambda: model(input_ids=check[0], labels=check[1]).loss))
    data = Examples([{"input_ids": a, "labels": b} for a, b in zip(*train, strict=True)])
    options: dict[str, Any] = {"gradient_checkpointing": True} if changed else {}
    hf_trainer(run, model, data, 110, **options).train()
