"""Honest loops around a model that was trained before: adapters, preferences, a teacher, frozen parts."""

import copy

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.text import corpus, crops, padded, sentences, some, topics
from benchmarks.robustness.loops.training import (
    adamw,
    gpt2,
    llama,
    log_likelihood,
    next_token,
    plain_loop,
    pretrain,
    update,
    warm_cosine,
)
from benchmarks.robustness.loops.transformer import Classifier, Transformer
from torch import nn
from torch.nn import functional as F


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
        update(run, doctor, optimizer, loss, ids, clip=(policy, 0.5))


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
        update(run, doctor, optimizer, loss, {"input_ids": ids, "attention_mask": mask})


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
        update(run, doctor, optimizer, loss, (x, y))


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
        update(run, doctor, optimizer, loss, (x, y))


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
        update(run, doctor, optimizer, loss, (ids, topics(batch)))


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
        update(run, doctor, optimizer, loss, batch)
