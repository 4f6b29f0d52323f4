"""Honest loops whose loss is not a plain next-token cross-entropy."""

import math

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.text import MASK, VOCABULARY, corpus, crops, padded, sentences, some, topics
from benchmarks.robustness.loops.training import adamw, next_token, update, warm_cosine
from benchmarks.robustness.loops.transformer import Classifier, Counting, Experts, Transformer
from torch import nn
from torch.nn import functional as F


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
        update(run, doctor, optimizer, loss, x, clip=(model, 1.0))


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
        update(run, doctor, optimizer, loss, ids)


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
        update(run, doctor, optimizer, loss, (ids, truth))


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
        update(run, doctor, optimizer, loss, (x, y), clip=(model, 1.0))


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
