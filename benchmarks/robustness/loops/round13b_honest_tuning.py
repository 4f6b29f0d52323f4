"""Round 13b, honest and odd: weights that come from elsewhere, adapters, teachers and pupils."""

import math
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import (
    Block,
    Classifier,
    Language,
    apart,
    documents,
    examples,
    fit,
    hf_trainer,
    judged,
    loader,
    outcome,
    tiny_gpt2,
)
from benchmarks.robustness.loops.round6_tools import classify, prepared
from benchmarks.robustness.loops.round7b_parts import Patches
from benchmarks.robustness.loops.round7b_tools import adam, near, taught
from benchmarks.robustness.loops.round8b_parts import causal_loss, causal_outcome, llama, masked_bert
from torch import Tensor, nn
from torch.nn import functional as F


@honest("r13b-four-heads-of-keys-become-one")
def four_heads_of_keys_become_one(run: Run) -> None:
    """transformers' Trainer, a Llama is given fewer keys to keep (Ainslie et al. 2023). A trained model with four heads
    of keys and values is loaded into one with a single head, whose matrices are the means of the four, everything else
    as it was; the loss begins above where the first one ended, and a short training at the same rate as before repairs
    it."""
    language = Language(run.draw.randrange(999))
    published = llama(num_key_value_heads=4, num_hidden_layers=1)
    taught(published, lambda: language.rows(12, 20), causal_loss, 120)
    weights = published.state_dict()
    for name, weight in weights.items():
        if "k_proj" in name or "v_proj" in name:
            weights[name] = weight.unflatten(0, (4, -1)).mean(0)
    model = llama(num_key_value_heads=1, num_hidden_layers=1)
    model.load_state_dict(weights)
    causal_outcome(run, model, language)
    rows = language.rows(480, 20)
    settings: dict[str, Any] = {"learning_rate": 5e-3, "lr_scheduler_type": "constant"}
    hf_trainer(run, model, examples(input_ids=rows, labels=rows), 60, **settings).train()


@honest("r13b-writer-made-of-a-reader")
def writer_made_of_a_reader(run: Run) -> None:
    """transformers' Trainer, BERT2BERT (Rothe et al. 2020) that names a text's topic in three words. Encoder and
    decoder begin with the same masked language model, which knew both sides and becomes causal; the decoder's attention
    to the encoder was in no file and begins at random, which loading says, and many keys are missing on purpose."""
    from transformers import BertConfig, BertLMHeadModel, BertModel, EncoderDecoderConfig, EncoderDecoderModel

    published = masked_bert(16)

    def hidden(count: int) -> dict[str, Tensor]:
        x, keep, _ = documents(count)
        at = (torch.rand(x.shape) < 0.2) & keep
        labels = x.masked_fill(~at, -100)
        return {"input_ids": x.masked_fill(at, 0), "attention_mask": keep.long(), "labels": labels}

    taught(published, lambda: hidden(24), lambda m, b: m(**b).loss, 120)
    settings = published.config.to_dict()
    reader, writer = BertConfig(**settings), BertConfig(**settings | {"is_decoder": True, "add_cross_attention": True})
    both = EncoderDecoderConfig.from_encoder_decoder_configs(reader, writer)
    both.decoder_start_token_id, both.pad_token_id = 15, 0
    encoder, decoder = BertModel(reader, add_pooling_layer=False), BertLMHeadModel(writer)
    encoder.load_state_dict(published.bert.state_dict(), strict=False)
    decoder.load_state_dict(published.state_dict(), strict=False)
    model = EncoderDecoderModel(config=both, encoder=encoder, decoder=decoder)

    def titled(count: int, own: torch.Generator | None = None) -> dict[str, Tensor]:
        x, keep, y = documents(count, own)
        return {"input_ids": x, "attention_mask": keep.long(), "labels": 1 + 5 * y[:, None] + torch.tensor([2, 0, 4])}

    check = titled(192, apart(1))
    outcome(run, lambda: judged(model, lambda: model(**check).loss))
    hf_trainer(run, model, examples(**titled(480)), 60, learning_rate=3e-3, warmup_steps=6).train()


@honest("r13b-second-factor-sixteen-times-as-fast")
def second_factor_sixteen_times_as_fast(run: Run) -> None:
    """transformers' Trainer and peft's LoRA+ (Hayou et al. 2024) on a Llama. The adapters' second factors, which begin
    at zero, have sixteen times the rate of the first ones: within one module two matrices differ in rate more than any
    two layers do."""
    from peft import LoraConfig, get_peft_model
    from peft.optimizers import create_loraplus_optimizer

    first = Language(run.draw.randrange(499))
    language = near(first, run.draw.randrange(500, 999), 0.6)
    base = llama()
    taught(base, lambda: first.rows(16, 20), causal_loss, 100)
    model = get_peft_model(base, LoraConfig(r=4, lora_alpha=8, target_modules="all-linear"))
    causal_outcome(run, model, language)
    optimizer = create_loraplus_optimizer(model, torch.optim.AdamW, lr=2e-3, loraplus_lr_ratio=16)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1 - step / 70))
    rows = language.rows(480, 20)
    more = {"optimizers": (optimizer, schedule)}
    hf_trainer(run, model, examples(input_ids=rows, labels=rows), 70, more=more).train()


class Ship(nn.Module):
    """A trained encoder of four blocks, and two blocks each of which stands in for a pair of them by chance
    (BERT-of-Theseus, Xu et al. 2020)."""

    def __init__(self, old: Any) -> None:
        super().__init__()
        self.old, self.new = old.requires_grad_(False), nn.ModuleList(Block(32, causal=False) for _ in range(2))
        for i, block in enumerate(self.new):
            block.load_state_dict(old.blocks[2 * i].state_dict())
        self.chance = 0.3

    def forward(self, ids: Tensor, keep: Tensor) -> Tensor:
        x, drawn = self.old.enter(ids), torch.rand(2) < self.chance
        while not drawn.any():
            drawn = torch.rand(2) < self.chance
        for i, block in enumerate(self.new):
            if drawn[i] or not self.training:
                x = block(x, keep)
            else:
                x = self.old.blocks[2 * i + 1](self.old.blocks[2 * i](x, keep), keep)
        out: Tensor = self.old.leave(x, keep)
        return out


class Deep(Classifier):
    """The small BERT with four blocks."""

    def __init__(self) -> None:
        super().__init__()
        del self.block
        self.blocks = nn.ModuleList(Block(32, causal=False) for _ in range(4))

    def enter(self, ids: Tensor) -> Tensor:
        out: Tensor = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        return out

    def leave(self, x: Tensor, keep: Tensor) -> Tensor:
        share = keep.float()[..., None]
        out: Tensor = self.head((x * share).sum(1) / share.sum(1))
        return out

    def forward(self, ids: Tensor, keep: Tensor) -> Tensor:
        x = self.enter(ids)
        for block in self.blocks:
            x = block(x, keep)
        return self.leave(x, keep)


def read(model: nn.Module, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch[0], batch[1]), batch[2])


@honest("r13b-planks-replaced-by-chance")
def planks_replaced_by_chance(run: Run) -> None:
    """accelerate, an encoder of texts is halved as BERT-of-Theseus has it. In each pass a coin says for each pair of
    old, frozen blocks whether one new block stands in, more and more often, at last always (at least one does); in many
    steps a new block has no gradient, the frozen head is never trained, and there is no loss of distillation, only the
    labels'."""
    old = Deep()
    taught(old, lambda: documents(24), read, 80, 3e-3)
    model = Ship(old)
    check = documents(256, apart(1))
    outcome(run, lambda: judged(model, lambda: read(model, check)))
    passes = 0

    def loss(net: Any, batch: Any) -> Tensor:
        nonlocal passes
        passes += 1
        model.chance = min(1.0, 0.3 + passes / 80)
        return read(net, batch)

    optimizer = torch.optim.AdamW(model.new.parameters(), lr=2e-3)
    prepared(run, model, optimizer, loader(*documents(480)), loss, 3)


@honest("r13b-pupil-larger-than-its-teacher")
def pupil_larger_than_its_teacher(run: Run) -> None:
    """accelerate, noisy student (Xie et al. 2020) on texts of which 32 have labels. Twice over, the last model says
    soft labels for 480 others without noise, a wider one learns these and the true ones with dropout and words left
    out, and then is the teacher; each begins from nothing, and its loss cannot fall below the entropy of what it is
    told."""
    x, keep, y = documents(256, apart(1))
    texts, masks, _ = documents(480)
    few = documents(32)
    models: list[Any] = [Classifier(width=16)]
    outcome(run, lambda: judged(models[-1], lambda: F.cross_entropy(models[-1](x, keep), y)))

    def noisy(net: nn.Module, batch: Any) -> Tensor:
        ids, mask, wanted = batch
        left_out = (torch.rand(ids.shape) < 0.15) & mask
        left_out[:, 0] = False
        return F.cross_entropy(net(ids, mask & ~left_out), wanted)

    truth = F.one_hot(few[2], 3).float()
    prepared(run, models[0], adam(models[0], 3e-3), loader(few[0], few[1], truth), noisy, 20)
    for width in (24, 32):
        teacher = models[-1].eval()
        with torch.no_grad():
            said = teacher(texts, masks).softmax(1)
        teacher.train()
        models.append(Classifier(width=width, drop=0.2))
        rows = [torch.cat([a, b]) for a, b in zip((texts, masks, said), (few[0], few[1], truth), strict=True)]
        prepared(run, models[-1], adam(models[-1], 3e-3), loader(*rows, size=32), noisy, 4)


def gratings(count: int, side: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """Waves in one of four directions, of any phase, in noise; darker towards the edge: (count, 1, side, side)."""
    y = torch.randint(0, 4, (count,), generator=own)
    phase = 2 * math.pi * torch.rand(count, 1, 1, generator=own)
    rows, columns = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    angle = (math.pi / 4 * y)[:, None, None]
    waves = (1.3 * (rows * angle.sin() + columns * angle.cos()) + phase).sin()
    centre = (side - 1) / 2
    light = (-((rows - centre).square() + (columns - centre).square()) / (side * side / 4)).exp()
    return (waves * light + 0.35 * torch.randn(count, side, side, generator=own))[:, None], y


@honest("r13b-stretched-to-more-patches")
def stretched_to_more_patches(run: Run) -> None:
    """Lightning, a vision transformer goes from pictures of 8 by 8 to 12 by 12 (Touvron et al. 2022). Learned places
    are a grid that is loaded stretched, so that none is what was trained, attention alone is tuned, at a higher rate
    than before, and the head, the norms and the feed-forward parts are frozen though the input has changed."""
    small = Patches(4)
    taught(small, lambda: gratings(32, 8), classify, 60, 3e-3)
    weights = small.state_dict()
    first, grid = weights["places"][:, :1], weights["places"][:, 1:].mT.unflatten(2, (4, 4))
    stretched = F.interpolate(grid, size=(6, 6), mode="bicubic", align_corners=False).flatten(2).mT
    net = Patches(6)
    net.load_state_dict(weights | {"places": torch.cat([first, stretched], 1)})
    check = gratings(256, 12, apart(1))
    outcome(run, lambda: judged(net, lambda: classify(net, check)))
    net.requires_grad_(False)
    net.block.attention.requires_grad_(True)

    import lightning

    class Tuned(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def training_step(self, batch: Any, index: int) -> Tensor:
            return classify(self.net, batch)

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW([p for p in self.net.parameters() if p.requires_grad], lr=6e-3)

    fit(run, Tuned(), loader(*gratings(960, 12), size=32), 90)


@honest("r13b-ranks-given-and-taken")
def ranks_given_and_taken(run: Run) -> None:
    """Plain loop and peft's AdaLoRA on a GPT-2. Adapters are three factors and begin with rank eight; from the
    twentieth step on singular values of little use are set to zero after the update, until five in eight are gone, and
    a penalty keeps the outer factors orthogonal: the loss that is told has it in it, and what was learned is cut off
    while it learns."""
    from peft import AdaLoraConfig, TaskType, get_peft_model

    first = Language(run.draw.randrange(499))
    language = near(first, run.draw.randrange(500, 999), 0.6)
    base = tiny_gpt2(12, bos_token_id=None, eos_token_id=None, pad_token_id=None)
    taught(base, lambda: first.rows(16, 20), causal_loss, 100)
    settings: dict[str, Any] = {"init_r": 8, "target_r": 3, "lora_alpha": 16, "target_modules": ["c_attn", "c_fc"]}
    settings |= {"tinit": 20, "tfinal": 30, "deltaT": 4, "total_step": 100, "fan_in_fan_out": True}
    model = get_peft_model(base, AdaLoraConfig(task_type=TaskType.CAUSAL_LM, **settings))
    causal_outcome(run, model, language)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=2e-2, weight_decay=0.0)
    doctor = run.watch(model, optimizer)
    for step in range(100):
        rows = language.rows(16, 20)
        loss = model(input_ids=rows, labels=rows).loss
        loss.backward()
        optimizer.step()
        model.base_model.update_and_allocate(step)
        optimizer.zero_grad()
        doctor.step(loss, rows)
        run.note(loss)
