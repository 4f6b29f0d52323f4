"""Forty training loops that are right, many of them unusual. Every one is run with the doctor and without."""

import copy
import math
from typing import Any

import torch
from benchmarks.robustness.doctor import Run, honest
from benchmarks.robustness.doctor_models import (
    BOS,
    EOS,
    MASK,
    PAD,
    VOCABULARY,
    Block,
    Classifier,
    Counting,
    Experts,
    Transformer,
    corpus,
    crops,
    next_token,
    padded,
    sentences,
    some,
    topics,
)
from benchmarks.robustness.doctor_optimizers import HalfAdamW, Lion, Muon, ScheduleFree, groups
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations


def adamw(model: nn.Module, lr: float = 2e-3, decay: float = 0.1) -> torch.optim.AdamW:
    return torch.optim.AdamW(groups(model, decay), lr=lr, betas=(0.9, 0.95))


def warm_cosine(optimizer: Any, steps: int, warmup: int = 8) -> Any:
    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / warmup
        return 0.1 + 0.45 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))

    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)


def plain_loop(
    run: Run, model: nn.Module, optimizer: Any, steps: int = 80, warmup: int = 8, clip: float = 1.0, length: int = 32
) -> None:
    """The loop of most of these: random crops, cross-entropy, clipping, warmup and cosine."""
    tokens = corpus(run.draw.randrange(1000))
    scheduler = warm_cosine(optimizer, steps, warmup)
    doctor = run.watch(model, optimizer, scheduler=scheduler)
    run.preflight(doctor, crops(tokens, 8, length), lambda m, b: next_token(m(b[0]), b[1]))
    for _ in range(steps):
        x, y = crops(tokens, 8, length)
        loss = next_token(model(x), y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        doctor.step(loss, (x, y))
        scheduler.step()
        run.note(loss)


def gpt2(**options: Any) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    settings = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "vocab_size": VOCABULARY} | options
    return GPT2LMHeadModel(GPT2Config(bos_token_id=BOS, eos_token_id=EOS, **settings))


def llama(**options: Any) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    settings: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    settings |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
    settings |= {"vocab_size": VOCABULARY, "bos_token_id": BOS, "eos_token_id": EOS, "pad_token_id": PAD}
    return LlamaForCausalLM(LlamaConfig(**(settings | options)))


def pretrain(model: nn.Module, tokens: Tensor, steps: int = 80, call: Any = None) -> None:
    """Unwatched: what a fine-tuning starts from."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(steps):
        x, y = crops(tokens)
        loss = next_token(call(x) if call else model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@honest("lora-gpt2")
def _(run: Run) -> None:
    """PEFT LoRA on the fused attention projection of a pretrained GPT-2, adapters trained alone."""
    from peft import LoraConfig, get_peft_model

    base = gpt2()
    pretrain(base, corpus(1), call=lambda x: base(input_ids=x).logits)
    rank = run.draw.choice((2, 4, 8))
    settings = LoraConfig(r=rank, lora_alpha=run.draw.choice((1, 2, 4)) * rank, target_modules=["c_attn"])
    settings.fan_in_fan_out = True
    model = get_peft_model(base, settings)
    tokens = corpus(2)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=2e-3, weight_decay=0.0)
    doctor = run.watch(model, optimizer)
    for _ in range(60):
        x, _ = crops(tokens)
        loss = model(input_ids=x, labels=x).loss
        loss.backward()
        optimizer.step()
        doctor.step(loss, {"input_ids": x, "labels": x})
        optimizer.zero_grad()
        run.note(loss)


@honest("lora-llama-rs")
def _(run: Run) -> None:
    """Rank-stabilised LoRA with a high alpha and dropout on all linear layers of a Llama, the head saved in full."""
    from peft import LoraConfig, get_peft_model

    base = llama()
    pretrain(base, corpus(1), call=lambda x: base(input_ids=x).logits)
    targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    settings = LoraConfig(r=8, lora_alpha=run.draw.choice((16, 32)), use_rslora=True, lora_dropout=0.1)
    settings.target_modules, settings.modules_to_save = targets, ["lm_head"]
    model = get_peft_model(base, settings)
    tokens = corpus(2)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=5e-4, weight_decay=0.0)
    scheduler = warm_cosine(optimizer, 60, 6)
    doctor = run.watch(model, optimizer, scheduler=scheduler, pretrained=True)
    for _ in range(60):
        x, _ = crops(tokens)
        loss = model(input_ids=x, labels=x).loss
        loss.backward()
        nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        scheduler.step()
        doctor.step(loss, {"input_ids": x, "labels": x})
        optimizer.zero_grad()
        run.note(loss)


def log_likelihood(model: nn.Module, ids: Tensor, mask: Tensor) -> Tensor:
    """Of each row, without its padding."""
    scores = model(ids[:, :-1]).log_softmax(-1).gather(-1, ids[:, 1:, None]).squeeze(-1)
    return (scores * mask[:, 1:]).sum(1)


@honest("dpo")
def _(run: Run) -> None:
    """Direct preference optimisation: frozen reference, chosen sentences against scrambled ones, small beta."""
    policy = Transformer()
    pretrain(policy, corpus(1))
    reference = copy.deepcopy(policy).eval().requires_grad_(False)
    documents, beta = sentences(1), run.draw.choice((0.05, 0.1, 0.3))
    optimizer = torch.optim.AdamW(policy.parameters(), lr=3e-4, weight_decay=0.0)
    doctor = run.watch(policy, optimizer)
    for _ in range(60):
        good = some(documents, 6)
        bad = [torch.cat([d[:4], d[4:-1][torch.randperm(len(d) - 5)], d[-1:]]) for d in good]
        ids, mask = padded(good + bad)
        ours = log_likelihood(policy, ids, mask)
        with torch.no_grad():
            theirs = log_likelihood(reference, ids, mask)
        margin = (ours - theirs)[:6] - (ours - theirs)[6:]
        loss = -F.logsigmoid(beta * margin).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        doctor.step(loss, {"input_ids": ids, "attention_mask": mask})
        optimizer.step()
        run.note(loss)


@honest("grpo")
def _(run: Run) -> None:
    """Group-relative policy gradient on sampled continuations: advantages of mean zero, a loss about zero."""
    policy = Transformer()
    tokens = corpus(1)
    pretrain(policy, tokens)
    reference = copy.deepcopy(policy).eval().requires_grad_(False)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=5e-4, weight_decay=0.0)
    doctor = run.watch(policy, optimizer)
    for _ in range(60):
        prompt = crops(tokens, 2, 8)[0].repeat_interleave(6, 0)
        ids = prompt
        with torch.no_grad():
            for _ in range(8):
                ids = torch.cat([ids, torch.multinomial(policy(ids)[:, -1].softmax(-1), 1)], 1)
        reward = (ids[:, 8:] == 4 + 1).float().mean(1).view(2, 6)
        gain = ((reward - reward.mean(1, keepdim=True)) / (reward.std(1, keepdim=True) + 1e-4)).view(-1, 1)
        chosen = policy(ids[:, :-1]).log_softmax(-1).gather(-1, ids[:, 1:, None]).squeeze(-1)[:, 7:]
        with torch.no_grad():
            known = reference(ids[:, :-1]).log_softmax(-1).gather(-1, ids[:, 1:, None]).squeeze(-1)[:, 7:]
        ratio = (chosen - chosen.detach()).exp()
        distance = (known - chosen).exp() - (known - chosen) - 1
        loss = -(torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain) - 0.04 * distance).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
        optimizer.step()
        doctor.step(loss, ids)
        run.note(loss)


@honest("reward-model")
def _(run: Run) -> None:
    """Bradley-Terry reward model: one score at the last token of each row, right padding."""
    model = Classifier(classes=1, pool="last", causal=True)
    documents = sentences(run.draw.randrange(100))
    optimizer = adamw(model, 1e-3)
    doctor = run.watch(model, optimizer)
    for _ in range(80):
        good = some(documents, 6)
        bad = [torch.cat([d[:1], d[1:-1].flip(0), d[-1:]]) for d in good]
        ids, mask = padded(good + bad)
        scores = model(ids, mask).squeeze(-1)
        loss = -F.logsigmoid(scores[:6] - scores[6:]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        doctor.step(loss, {"input_ids": ids, "attention_mask": mask})
        run.note(loss)


@honest("distillation")
def _(run: Run) -> None:
    """A student taught by a frozen teacher's softened distribution, a little cross-entropy beside it."""
    teacher, tokens, heat = Transformer(width=48), corpus(1), run.draw.choice((2.0, 4.0))
    pretrain(teacher, tokens)
    teacher.eval().requires_grad_(False)
    student = Transformer(layers=1)
    optimizer = adamw(student)
    doctor = run.watch(student, optimizer)
    for _ in range(80):
        x, y = crops(tokens)
        logits = student(x)
        with torch.no_grad():
            wanted = (teacher(x) / heat).log_softmax(-1)
        soft = F.kl_div(
            (logits / heat).log_softmax(-1).flatten(0, 1), wanted.flatten(0, 1), None, None, "batchmean", True
        )
        loss = 0.8 * heat**2 * soft + 0.2 * next_token(logits, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        doctor.step(loss, (x, y))
        run.note(loss)


@honest("masked-lm")
def _(run: Run) -> None:
    """Masked language model: two-sided attention, 15% of tokens hidden, 80/10/10, -100 elsewhere."""
    model, tokens = Transformer(causal=False, dropout=0.1), corpus(run.draw.randrange(100))
    optimizer = adamw(model)
    scheduler = warm_cosine(optimizer, 80)
    doctor = run.watch(model, optimizer, scheduler=scheduler)
    for _ in range(80):
        x, _ = crops(tokens)
        hidden = torch.rand(x.shape) < 0.15
        labels = x.masked_fill(~hidden, -100)
        kind = torch.rand(x.shape)
        seen = x.masked_fill(hidden & (kind < 0.8), MASK)
        seen = torch.where(hidden & (kind > 0.9), torch.randint(4, VOCABULARY, x.shape), seen)
        loss = F.cross_entropy(model(seen).view(-1, VOCABULARY), labels.reshape(-1))
        loss.backward()
        optimizer.step()
        doctor.step(loss, {"input_ids": seen, "labels": labels})
        scheduler.step()
        optimizer.zero_grad()
        run.note(loss)


@honest("masked-diffusion")
def _(run: Run) -> None:
    """Masked diffusion: a random share of each row hidden, losses weighted by 1/share, so that they are noisy."""
    model, tokens = Transformer(causal=False), corpus(4)
    optimizer = adamw(model)
    doctor = run.watch(model, optimizer)
    for _ in range(100):
        x, _ = crops(tokens)
        share = torch.rand(8, 1) * 0.9 + 0.1
        hidden = torch.rand(x.shape) < share
        logits = model(x.masked_fill(hidden, MASK))
        losses = F.cross_entropy(logits.transpose(1, 2), x, reduction="none")
        loss = (losses * hidden / share).sum() / x.numel()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        doctor.step(loss, x)
        run.note(loss)


@honest("contrastive")
def _(run: Run) -> None:
    """InfoNCE between two views of a sentence, with CLIP's learned temperature, clamped."""
    model = Classifier(classes=16)
    model.scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))
    documents = sentences(5)
    optimizer = adamw(model, 1e-3)
    doctor = run.watch(model, optimizer)
    for _ in range(80):
        ids, mask = padded(some(documents, 12))
        views = [ids.masked_fill(torch.rand(ids.shape) < 0.1, MASK) for _ in range(2)]
        a, b = (F.normalize(model(view, mask), dim=-1) for view in views)
        scores = model.scale.exp() * a @ b.T
        truth = torch.arange(12)
        loss = (F.cross_entropy(scores, truth) + F.cross_entropy(scores.T, truth)) / 2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            model.scale.clamp_(0, math.log(100))
        doctor.step(loss, ids)
        run.note(loss)


@honest("multi-task")
def _(run: Run) -> None:
    """Next token, topic and length at once, weighted by learned uncertainties: the loss may go below zero."""
    model = Transformer()
    model.topic, model.size = nn.Linear(32, 4), nn.Linear(32, 1)
    model.doubt = nn.Parameter(torch.zeros(3))
    documents = sentences(7)
    optimizer = adamw(model)
    doctor = run.watch(model, optimizer)
    for _ in range(80):
        batch = some(documents)
        ids, mask = padded(batch)
        hidden = model.hidden(ids, mask.bool())
        pooled = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        labels = ids[:, 1:].masked_fill(mask[:, 1:] == 0, -100)
        losses = torch.stack(
            [
                F.cross_entropy(model.head(hidden[:, :-1]).flatten(0, 1), labels.flatten()),
                F.cross_entropy(model.topic(pooled), topics(batch)),
                F.mse_loss(model.size(pooled).squeeze(-1), mask.sum(1) / 40),
            ]
        )
        loss = (losses * (-model.doubt).exp() + model.doubt).sum() / 2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        doctor.step(loss, ids)
        run.note(loss)


@honest("layerwise-rates")
def _(run: Run) -> None:
    """Fine-tuning with rates that fall by layer from the head down, a group per layer, the embedding slowest."""
    model = Transformer(layers=4, norm="rms", bias=False)
    pretrain(model, corpus(1), 40)
    parts = [model.head, model.norm, *reversed(list(model.blocks)), model.positions, model.embedding]
    fall = run.draw.choice((0.6, 0.8))
    settings = [
        {
            "params": [p for p in part.parameters() if (p.dim() < 2) == small],
            "lr": 1e-3 * fall**depth,
            "weight_decay": d,
        }
        for depth, part in enumerate(parts)
        for small, d in ((False, 0.01), (True, 0.0))
    ]
    optimizer = torch.optim.AdamW([s for s in settings if s["params"]])
    plain_loop(run, model, optimizer)


@honest("gradual-unfreezing")
def _(run: Run) -> None:
    """ULMFiT's way: the head first, a block more every 20 steps, its parameters added as a new group."""
    model, tokens = Transformer(layers=3), corpus(2)
    pretrain(model, corpus(1), 60)
    model.requires_grad_(False)
    model.head.requires_grad_(True)
    optimizer = torch.optim.AdamW(model.head.parameters(), lr=2e-3, weight_decay=0.0)
    doctor = run.watch(model, optimizer)
    for step in range(80):
        if step and step % 20 == 0:
            block = model.blocks[3 - step // 20].requires_grad_(True)
            optimizer.add_param_group({"params": list(block.parameters()), "lr": 2e-3 / 2 ** (step // 20)})
        x, y = crops(tokens)
        loss = next_token(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        doctor.step(loss, (x, y))
        run.note(loss)


@honest("frozen-trunk")
def _(run: Run) -> None:
    """A linear probe: the trunk in eval mode, without gradients, the head trained by plain SGD at a high rate."""
    trunk = Transformer()
    pretrain(trunk, corpus(1), 60)
    model = Classifier(classes=4)
    model.trunk = trunk
    trunk.eval().requires_grad_(False)
    documents = sentences(1)
    optimizer = torch.optim.SGD(model.classes.parameters(), lr=0.5)
    doctor = run.watch(model, optimizer)
    for _ in range(100):
        batch = some(documents, 16)
        ids, mask = padded(batch)
        with torch.no_grad():
            hidden = trunk.hidden(ids, mask.bool())
        logits = model.classes((hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True))
        loss = F.cross_entropy(logits, topics(batch))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        doctor.step(loss, (ids, topics(batch)))
        run.note(loss)


@honest("ema")
def _(run: Run) -> None:
    """An exponential average of the weights, evaluated every 15 steps in the model's place, swapped back."""
    model, tokens = Transformer(dropout=0.1), corpus(8)
    average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.98))
    optimizer = adamw(model)
    doctor = run.watch(model, optimizer)
    for step in range(80):
        x, y = crops(tokens)
        loss = next_token(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        average.update_parameters(model)
        doctor.step(loss, (x, y))
        run.note(loss)
        if step % 15 == 14:
            kept = copy.deepcopy(model.state_dict())
            model.load_state_dict(average.module.state_dict())
            model.eval()
            with torch.no_grad():
                run.note(next_token(model(x), y))
            model.train()
            model.load_state_dict(kept)


@honest("swa")
def _(run: Run) -> None:
    """Stochastic weight averaging in the last third, at a constant raised rate."""
    model, tokens = Transformer(), corpus(9)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 60)
    constant = torch.optim.swa_utils.SWALR(optimizer, swa_lr=0.15, anneal_epochs=5)
    average = torch.optim.swa_utils.AveragedModel(model)
    doctor = run.watch(model, optimizer, scheduler=cosine)
    for step in range(100):
        x, y = crops(tokens)
        loss = next_token(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        doctor.step(loss, (x, y))
        if step >= 60:
            average.update_parameters(model)
            constant.step()
        else:
            cosine.step()
        run.note(loss)


@honest("unequal-accumulation")
def _(run: Run) -> None:
    """Micro-batches of unequal size, summed losses over the tokens of all of them, as transformers does now."""
    model, documents = Transformer(norm="rms", positions="rope"), sentences(10)
    optimizer = adamw(model)
    doctor = run.watch(model, optimizer)
    for _ in range(70):
        micro = [padded(some(documents, rows)) for rows in (2, 5, 1, 4)]
        tokens = sum(mask[:, 1:].sum() for _, mask in micro)
        total = torch.zeros(())
        optimizer.zero_grad()
        for ids, mask in micro:
            labels = ids[:, 1:].masked_fill(mask[:, 1:] == 0, -100)
            part = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), labels.flatten(), reduction="sum") / tokens
            part.backward()
            total = total + part.detach()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        doctor.step(total, [{"input_ids": ids, "attention_mask": mask} for ids, mask in micro])
        run.note(total)


@honest("curriculum")
def _(run: Run) -> None:
    """Short crops first, longer ones later with fewer rows; the first text is easy (few words), the second is not."""
    model, easy, hard = Transformer(positions="alibi", tied=True), corpus(1, characters=400), corpus(1)
    optimizer = adamw(model)
    doctor = run.watch(model, optimizer)
    for step in range(100):
        length = (8, 16, 32, 48)[step // 25]
        x, y = crops(easy if step < 40 else hard, 256 // length, length)
        loss = next_token(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        doctor.step(loss, (x, y))
        run.note(loss)


@honest("packed-documents")
def _(run: Run) -> None:
    """Documents packed into rows: attention within each, positions anew, no target across an end; checkpointed."""
    model, documents = Transformer(checkpoint=True, dropout=0.1), sentences(11)
    optimizer = adamw(model)
    doctor = run.watch(model, optimizer)
    for _ in range(70):
        rows = [some(documents, 6) for _ in range(6)]
        ids = torch.stack([F.pad(torch.cat(row), (0, 64))[:64] for row in rows])
        owner = (ids == BOS).cumsum(1)
        starts = torch.where(ids == BOS, torch.arange(64), 0).cummax(1).values
        positions = torch.arange(64) - starts
        within = (owner[:, :, None] == owner[:, None, :]) & (ids != PAD)[:, None, :]
        labels = F.pad(ids[:, 1:], (0, 1), value=-100)
        labels = labels.masked_fill((labels == BOS) | (labels == PAD), -100)
        loss = F.cross_entropy(model(ids, within, positions).flatten(0, 1), labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        doctor.step(loss, {"input_ids": ids, "labels": labels, "position_ids": positions})
        run.note(loss)


@honest("left-padding")
def _(run: Run) -> None:
    """Completions fine-tuned with left padding in GPT-2: attention mask, position ids, prompts at -100."""
    model = gpt2(attn_pdrop=0.0)
    pretrain(model, corpus(1), 60, call=lambda x: model(input_ids=x).logits)
    documents = sentences(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=0.0)
    doctor = run.watch(model, optimizer)
    for _ in range(60):
        ids, mask = padded(some(documents), left=True)
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        labels = ids.masked_fill((mask == 0) | (positions < 8), -100)
        batch = {"input_ids": ids, "attention_mask": mask, "position_ids": positions, "labels": labels}
        loss = model(**batch).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        doctor.step(loss, batch)
        run.note(loss)


@honest("smoothing-and-z-loss")
def _(run: Run) -> None:
    """Label smoothing of 0.1 and PaLM's z-loss of 1e-4, tied embedding, bfloat16 autocast."""
    model, tokens, smooth = Transformer(tied=True), corpus(12), run.draw.choice((0.05, 0.1, 0.2))
    optimizer = adamw(model)
    doctor = run.watch(model, optimizer)
    for _ in range(80):
        x, y = crops(tokens)
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(x)
        logits = logits.float()
        loss = F.cross_entropy(logits.flatten(0, 1), y.flatten(), label_smoothing=smooth)
        loss = loss + 1e-4 * logits.logsumexp(-1).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        doctor.step(loss, (x, y))
        optimizer.step()
        run.note(loss)


@honest("mixture-of-experts")
def _(run: Run) -> None:
    """Top-2 of four experts with Switch's balancing loss at 0.01; some experts get no token in some steps."""
    model, tokens = Transformer(experts=4), corpus(13)
    optimizer = adamw(model)
    doctor = run.watch(model, optimizer)
    for _ in range(60):
        x, y = crops(tokens, 4)
        loss = next_token(model(x), y)
        loss = loss + 0.01 * sum(m.balance for m in model.modules() if isinstance(m, Experts))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        doctor.step(loss, (x, y))
        run.note(loss)


@honest("stochastic-depth")
def _(run: Run) -> None:
    """Whole blocks dropped at random, dropout of 0.2 beside: parameters without a gradient in some steps."""
    model = Transformer(layers=4, drop_path=run.draw.choice((0.2, 0.5)), dropout=0.2)
    plain_loop(run, model, adamw(model))


@honest("mixup")
def _(run: Run) -> None:
    """Mixup of embeddings and of targets, in a classifier: no row has one label."""
    model, documents = Classifier(classes=4), sentences(14)
    optimizer = adamw(model, 1e-3)
    doctor = run.watch(model, optimizer)
    for _ in range(80):
        batch = some(documents, 16)
        ids, _ = padded(batch)
        truth = F.one_hot(topics(batch), 4).float()
        share = float(torch.distributions.Beta(0.4, 0.4).sample())
        order = torch.randperm(16)
        embedded = model.trunk.embedding(ids)
        mixed = share * embedded + (1 - share) * embedded[order]
        hidden = model.trunk.hidden(None, embedded=mixed)
        loss = F.cross_entropy(model.classes(hidden.mean(1)), share * truth + (1 - share) * truth[order])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        doctor.step(loss, (ids, truth))
        run.note(loss)


@honest("relative-positions")
def _(run: Run) -> None:
    """A learned bias per distance and head, no biases, untied, NAdam, no clipping."""
    model = Transformer(positions="relative", bias=False, norm="rms")
    plain_loop(run, model, torch.optim.NAdam(model.parameters(), lr=1e-3), clip=0.0)


@honest("linear-attention")
def _(run: Run) -> None:
    """Linear attention by running sums, no positions: their order comes from the sums."""
    model = Transformer(attention="linear", positions="none")
    plain_loop(run, model, adamw(model), steps=60)


class Recurrent(nn.Module):
    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(VOCABULARY, width), nn.Linear(width, VOCABULARY)
        self.cells, self.counting = nn.LSTM(width, width, 2, batch_first=True, dropout=0.1), Counting()

    def forward(self, x: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        hidden, state = self.cells(self.counting(self.embedding(x)), state)
        return self.head(hidden), state


@honest("lstm-book-in-order")
def _(run: Run) -> None:
    """Truncated backpropagation: a book read in order by eight readers, hidden states carried on and detached."""
    model, tokens = Recurrent(), corpus(15)
    rows = tokens[: len(tokens) // 8 * 8].view(8, -1)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    doctor = run.watch(model, optimizer)
    state: Any = None
    for step in range(100):
        at = step * 32
        x, y = rows[:, at : at + 32], rows[:, at + 1 : at + 33]
        logits, state = model(x, state)
        state = tuple(part.detach() for part in state)
        loss = next_token(logits, y)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
        doctor.step(loss, (x, y))
        run.note(loss)


class Diagonal(nn.Module):
    """A diagonal state-space layer, real, as a causal convolution by FFT."""

    def __init__(self, width: int, states: int = 8) -> None:
        super().__init__()
        self.log_rate = nn.Parameter(torch.rand(width, states).mul(3).sub(4))
        self.read = nn.Parameter(torch.randn(width, states) / states**0.5)
        self.skip = nn.Parameter(torch.ones(width))
        self.norm, self.gate, self.out = nn.LayerNorm(width), nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        u, length = self.norm(x), x.shape[1]
        rate = self.log_rate.exp()
        kernel = torch.einsum("ds,dsl->dl", self.read, (-rate[..., None] * torch.arange(length)).exp())
        spectrum = torch.fft.rfft(u.transpose(1, 2), n=2 * length) * torch.fft.rfft(kernel, n=2 * length)
        y = torch.fft.irfft(spectrum, n=2 * length)[..., :length].transpose(1, 2) + u * self.skip
        return x + self.out(F.silu(self.gate(u)) * y)


@honest("state-space")
def _(run: Run) -> None:
    """A diagonal state-space model as a convolution by FFT, the recurrence with a rate of its own and no decay."""
    model = nn.Sequential(
        nn.Embedding(VOCABULARY, 32), Counting(), Diagonal(32), Diagonal(32), nn.Linear(32, VOCABULARY)
    )
    slow = [p for n, p in model.named_parameters() if "log_rate" in n]
    other = [p for n, p in model.named_parameters() if "log_rate" not in n]
    parts: list[dict[str, Any]] = [{"params": other}, {"params": slow, "lr": 5e-4, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(parts, lr=3e-3)
    plain_loop(run, model, optimizer)


@honest("adversarial")
def _(run: Run) -> None:
    """A generator and a critic with a gradient penalty (second derivatives), taking turns, both watched."""
    maker = nn.Sequential(nn.Linear(8, 32), nn.LeakyReLU(0.2), nn.Linear(32, 2))
    critic = nn.Sequential(nn.Linear(2, 32), Counting(), nn.LeakyReLU(0.2), nn.Linear(32, 1))
    make = torch.optim.Adam(maker.parameters(), lr=1e-3, betas=(0.0, 0.9))
    judge = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.0, 0.9))
    maker_doctor, critic_doctor = run.watch(maker, make), run.watch(critic, judge)
    for _ in range(60):
        for _ in range(3):
            angle = torch.rand(32, 1) * 6.28
            real, fake = torch.cat([angle.cos(), angle.sin()], 1), maker(torch.randn(32, 8)).detach()
            between = torch.lerp(real, fake, torch.rand(32, 1)).requires_grad_(True)
            slope = torch.autograd.grad(critic(between).sum(), between, create_graph=True)[0]
            loss = critic(fake).mean() - critic(real).mean() + 10 * (slope.norm(dim=1) - 1).pow(2).mean()
            judge.zero_grad()
            loss.backward()
            judge.step()
            critic_doctor.step(loss)
            run.note(loss)
        loss = -critic(maker(torch.randn(32, 8))).mean()
        make.zero_grad()
        loss.backward()
        make.step()
        maker_doctor.step(loss)
        run.note(loss)


@honest("muon-and-adamw")
def _(run: Run) -> None:
    """Two optimizers on one model: Muon for the blocks' matrices, AdamW for the rest; the doctor is told of both."""
    model, tokens = Transformer(bias=False), corpus(16)
    inner = [p for p in model.blocks.parameters() if p.dim() == 2]
    ids = {id(p) for p in inner}
    muon = Muon(inner, lr=0.01)
    rest = torch.optim.AdamW([p for p in model.parameters() if id(p) not in ids], lr=3e-3, weight_decay=0.0)
    doctor = run.watch(model, [muon, rest])
    for _ in range(80):
        x, y = crops(tokens)
        loss = next_token(model(x), y)
        loss.backward()
        muon.step()
        rest.step()
        doctor.step(loss, (x, y))
        muon.zero_grad()
        rest.zero_grad()
        run.note(loss)


@honest("lbfgs")
def _(run: Run) -> None:
    """L-BFGS with a strong-Wolfe search: a closure evaluated several times in a step, the whole set as one batch."""
    model = nn.Sequential(nn.Linear(16, 24), Counting(), nn.Tanh(), nn.Linear(24, 3))
    x = torch.randn(120, 16)
    y = (x[:, :3] + 0.3 * torch.randn(120, 3)).argmax(1)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=1.0, max_iter=4, line_search_fn="strong_wolfe")
    doctor = run.watch(model, optimizer)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y) + 1e-3 * sum(p.pow(2).sum() for p in model.parameters())
        loss.backward()
        return loss

    for _ in range(60):
        loss = optimizer.step(closure)
        doctor.step(loss, (x, y))
        run.note(loss)


@honest("sgd-one-cycle")
def _(run: Run) -> None:
    """SGD with Nesterov's momentum, OneCycle or a triangular cycle: the rate rises long, momentum falls."""
    model, tokens = Transformer(), corpus(17)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    if run.draw.random() < 0.5:
        scheduler: Any = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.5, total_steps=101)
    else:
        scheduler = torch.optim.lr_scheduler.CyclicLR(optimizer, 0.02, 0.5, step_size_up=15)
    doctor = run.watch(model, optimizer, scheduler=scheduler, total_steps=100)
    for _ in range(100):
        x, y = crops(tokens)
        loss = next_token(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        doctor.step(loss, (x, y))
        run.note(loss)


@honest("adafactor")
def _(run: Run) -> None:
    """Adafactor: factored second moments, a rate relative to the weights' size."""
    model = Transformer(positions=run.draw.choice(("rope", "learned")), tied=True)
    plain_loop(run, model, torch.optim.Adafactor(model.parameters(), lr=0.03), clip=0.0, warmup=1)


@honest("lion-restarts")
def _(run: Run) -> None:
    """Lion with cosine restarts: the rate jumps up again every 25 steps."""
    model, tokens = Transformer(), corpus(18)
    optimizer = Lion(groups(model, 0.3), lr=5e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 25)
    doctor = run.watch(model, optimizer, scheduler=scheduler)
    for _ in range(100):
        x, y = crops(tokens)
        loss = next_token(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        doctor.step(loss, (x, y))
        run.note(loss)


@honest("schedule-free")
def _(run: Run) -> None:
    """Schedule-free AdamW: weights swapped to their average for evaluation and back; no scheduler on purpose."""
    model, tokens = Transformer(), corpus(19)
    optimizer = ScheduleFree(model.parameters(), lr=4e-3)
    doctor = run.watch(model, optimizer)
    for step in range(90):
        x, y = crops(tokens)
        loss = next_token(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        doctor.step(loss, (x, y))
        run.note(loss)
        if step % 30 == 29:
            model.eval()
            optimizer.eval()
            with torch.no_grad():
                run.note(next_token(model(x), y))
            model.train()
            optimizer.train()


@honest("bfloat16-weights")
def _(run: Run) -> None:
    """Weights in bfloat16 alone, small updates kept by Kahan's sum or by random rounding."""
    model, tokens = Transformer(norm="rms").bfloat16(), corpus(20)
    optimizer = HalfAdamW(model.parameters(), lr=3e-4, kahan=run.draw.random() < 0.5)
    doctor = run.watch(model, optimizer)
    for _ in range(80):
        x, y = crops(tokens)
        loss = next_token(model(x).float(), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        doctor.step(loss, (x, y))
        run.note(loss)


@honest("float16-scaler")
def _(run: Run) -> None:
    """float16 autocast with a GradScaler that starts too high: the first steps are skipped, later ones too."""
    model, tokens = Transformer(), corpus(21)
    optimizer = adamw(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24, growth_interval=20)
    doctor = run.watch(model, optimizer, scaler=scaler)
    for _ in range(80):
        x, y = crops(tokens)
        with torch.autocast("cpu", torch.float16):
            logits = model(x)
        loss = next_token(logits.float(), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        doctor.step(loss, (x, y))
        run.note(loss)


@honest("compiled")
def _(run: Run) -> None:
    """torch.compile on the model; the loop knows the compiled module only."""
    torch._dynamo.reset()
    model = Transformer(layers=1)
    compiled: Any = torch.compile(model)
    plain_loop(run, compiled, adamw(compiled), steps=60)


class Rounded(torch.autograd.Function):
    """Four-bit weights forward, the gradient straight through where it was not clipped."""

    @staticmethod
    def forward(context: Any, weight: Tensor) -> Tensor:
        step = weight.abs().amax() / 7
        return (weight / step).round().clamp(-7, 7) * step

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        return gradient


class RoundedLinear(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, Rounded.apply(self.weight), self.bias)


@honest("norms-and-straight-through")
def _(run: Run) -> None:
    """Weight norm on queries, spectral norm on values, MLPs in four bits with a straight-through gradient."""
    model = Transformer(init=0.06)
    for block in model.blocks:
        assert isinstance(block, Block)
        parametrizations.weight_norm(block.attention.query)
        parametrizations.spectral_norm(block.attention.value)
        up = RoundedLinear(32, 128)
        up.load_state_dict(block.mlp.up.state_dict())  # type: ignore[union-attr]
        block.mlp.up = up
    plain_loop(run, model, torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.0))


@honest("resumed")
def _(run: Run) -> None:
    """A run that goes on from its checkpoint: model, optimizer and scheduler loaded, the doctor told the step."""
    tokens = corpus(23)
    torch.manual_seed(5)
    parts: list[Any] = []
    for part in range(2):
        model = Transformer()
        optimizer = adamw(model)
        scheduler = warm_cosine(optimizer, 120)
        if part:
            for item, state in zip((model, optimizer, scheduler), parts, strict=True):
                item.load_state_dict(state)
        doctor = run.watch(model, optimizer, scheduler=scheduler, first_step=61) if part else None
        for _ in range(60):
            x, y = crops(tokens)
            loss = next_token(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            if doctor:
                doctor.step(loss, (x, y))
                run.note(loss)
        parts = [copy.deepcopy(item.state_dict()) for item in (model, optimizer, scheduler)]


@honest("llama-trainer-tiny-set")
def _(run: Run) -> None:
    """Trainer's loop around a Llama on 24 rows, ten epochs on purpose, shuffled, two micro-batches a step."""
    from transformers import get_cosine_schedule_with_warmup

    model, tokens = llama(), corpus(24)
    rows = crops(tokens, 24)[0]
    optimizer = adamw(model, 3e-3)
    scheduler = get_cosine_schedule_with_warmup(optimizer, 6, 60)
    doctor = run.watch(model, optimizer, scheduler=scheduler)
    for _ in range(10):
        order = torch.randperm(24).view(6, 2, 2)
        for step in order:
            total = 0.0
            for micro in step:
                loss = model(input_ids=rows[micro], labels=rows[micro]).loss / 2
                loss.backward()
                total += float(loss.detach())
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            doctor.step(total, [{"input_ids": rows[m], "labels": rows[m]} for m in step])
            model.zero_grad()
            run.note(total)
