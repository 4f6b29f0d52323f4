"""The third round of honest loops: other ways to make a step, and runs that change as they go."""

import copy
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.text import corpus, crops, padded, sentences, topics
from benchmarks.robustness.loops.training import adamw, next_token, update
from benchmarks.robustness.loops.transformer import Classifier, Transformer
from torch import Tensor, nn
from torch.nn import functional as F


@honest("length-warm-up")
def _(run: Run) -> None:
    """Rows of 8 tokens that grow by 4 every ten steps, with the number of tokens a step nearly constant."""
    model, tokens = Transformer(positions="rope"), corpus(41)
    optimizer = adamw(model)
    doctor = run.watch(model, optimizer)
    for step in range(90):
        length = 8 + 4 * (step // 10)
        x, y = crops(tokens, 256 // length, length)
        update(run, doctor, optimizer, next_token(model(x), y), (x, y), (model, 1.0))


@honest("batch-size-warm-up")
def _(run: Run) -> None:
    """One micro-batch a step at first, eight at the end, each loss divided by their number."""
    model, tokens = Transformer(), corpus(42)
    optimizer = adamw(model, 1e-3)
    doctor = run.watch(model, optimizer)
    for step in range(64):
        micro = [crops(tokens, 4) for _ in range(1 + step // 8)]
        optimizer.zero_grad()
        total = 0.0
        for x, y in micro:
            loss = next_token(model(x), y) / len(micro)
            loss.backward()
            total += float(loss.detach())
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        doctor.step(total, micro)
        run.note(total)


@honest("sharpness-aware")
def _(run: Run) -> None:
    """Sharpness-aware minimisation: up along the gradient, a second gradient there, back, and the step with it."""
    model, tokens = Transformer(), corpus(43)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    doctor = run.watch(model, optimizer)
    for _ in range(60):
        x, y = crops(tokens)
        loss = next_token(model(x), y)
        loss.backward()
        with torch.no_grad():
            length = torch.stack([p.grad.norm() for p in model.parameters() if p.grad is not None]).norm()
            moves = [(p, 0.05 / length * p.grad) for p in model.parameters() if p.grad is not None]
            for p, move in moves:
                p.add_(move)
        optimizer.zero_grad()
        next_token(model(x), y).backward()
        with torch.no_grad():
            for p, move in moves:
                p.sub_(move)
        optimizer.step()
        optimizer.zero_grad()
        doctor.step(loss, (x, y))
        run.note(loss)


class Lookahead(torch.optim.Optimizer):
    """Fast weights by another optimizer; every five steps the slow ones go half of the way to them."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner, self.count = inner, 0
        super().__init__(inner.param_groups, {})
        self.param_groups, self.slow = inner.param_groups, [p.detach().clone() for p in self.weights(inner)]

    @staticmethod
    def weights(optimizer: torch.optim.Optimizer) -> list[Tensor]:
        return [p for group in optimizer.param_groups for p in group["params"]]

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.inner.step()
        self.count += 1
        if self.count % 5 == 0:
            for slow, fast in zip(self.slow, self.weights(self.inner), strict=True):
                fast.copy_(slow.lerp_(fast, 0.5))


@honest("lookahead")
def _(run: Run) -> None:
    """Lookahead around AdamW: every five steps the weights go half of the way back."""
    model, tokens = Transformer(tied=True), corpus(44)
    optimizer = Lookahead(adamw(model, 3e-3))
    doctor = run.watch(model, optimizer)
    for _ in range(80):
        x, y = crops(tokens)
        update(run, doctor, optimizer, next_token(model(x), y), (x, y))


@honest("sign-sgd")
def _(run: Run) -> None:
    """SGD on the signs of the gradients: every weight moves by the rate."""
    model, tokens = Transformer(), corpus(45)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    doctor = run.watch(model, optimizer)
    for _ in range(80):
        x, y = crops(tokens)
        loss = next_token(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        for p in model.parameters():
            if p.grad is not None:
                p.grad.sign_()
        optimizer.step()
        doctor.step(loss, (x, y))
        run.note(loss)


@honest("gradient-noise")
def _(run: Run) -> None:
    """Noise added to the gradients, less and less of it (Neelakantan et al. 2015)."""
    model, tokens = Transformer(norm="rms"), corpus(46)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    doctor = run.watch(model, optimizer)
    for step in range(80):
        x, y = crops(tokens)
        loss = next_token(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for p in model.parameters():
            if p.grad is not None:
                p.grad.add_(torch.randn_like(p.grad), alpha=0.01 / (1 + step) ** 0.55)
        optimizer.step()
        doctor.step(loss, (x, y))
        run.note(loss)


@honest("folds")
def _(run: Run) -> None:
    """Three folds: a new model, optimizer and doctor for each, several epochs over a small set."""
    documents = sentences(47)[:96]
    for fold in range(3):
        kept = [d for i, d in enumerate(documents) if i % 3 != fold]
        model = Classifier(classes=4, dropout=0.1)
        optimizer = adamw(model, 2e-3)
        doctor = run.watch(model, optimizer)
        for _ in range(4):
            for rows in torch.randperm(len(kept)).split(8):
                batch = [kept[i] for i in rows.tolist()]
                ids, mask = padded(batch)
                loss = F.cross_entropy(model(ids, mask), topics(batch))
                labels = {"input_ids": ids, "attention_mask": mask, "labels": topics(batch)}
                update(run, doctor, optimizer, loss, labels)
        model.eval()
        with torch.no_grad():
            ids, mask = padded(documents[fold::3])
            run.note(F.cross_entropy(model(ids, mask), topics(documents[fold::3])))


@honest("snapshot-ensemble")
def _(run: Run) -> None:
    """Cosines from a high rate to nearly zero, four times over; the weights are kept at each end."""
    model, tokens = Transformer(), corpus(48)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.4, momentum=0.9, nesterov=True)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 30, eta_min=1e-3)
    doctor = run.watch(model, optimizer, scheduler=scheduler)
    snapshots = []
    for step in range(120):
        x, y = crops(tokens)
        update(run, doctor, optimizer, next_token(model(x), y), (x, y), (model, 1.0))
        scheduler.step()
        if step % 30 == 29:
            snapshots.append(copy.deepcopy(model.state_dict()))


class FakeQuantised(nn.Linear):
    """Weights and inputs rounded to eight bits once `on`; ranges are followed from the start."""

    on = False

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.register_buffer("largest", torch.tensor(1.0))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.largest.lerp_(x.detach().abs().max(), 0.05)
        if not self.on:
            return super().forward(x)
        step = float(self.weight.detach().abs().max()) / 127
        weight = torch.fake_quantize_per_tensor_affine(self.weight, step, 0, -128, 127)
        given = torch.fake_quantize_per_tensor_affine(x, float(self.largest) / 127, 0, -128, 127)
        return F.linear(given, weight, self.bias)


@honest("quantisation-aware")
def _(run: Run) -> None:
    """Quantisation-aware training: ranges observed for thirty steps, then eight bits forward."""
    model, tokens = Transformer(init=0.05), corpus(49)
    made = []
    for block in model.blocks:
        for part, name in ((block.mlp, "up"), (block.mlp, "down"), (block.attention, "out")):
            old = getattr(part, name)
            new = FakeQuantised(old.in_features, old.out_features)
            new.load_state_dict(old.state_dict(), strict=False)
            setattr(part, name, new)
            made.append(new)
    optimizer = adamw(model, 1e-3)
    doctor = run.watch(model, optimizer)
    for step in range(80):
        if step == 30:
            for layer in made:
                layer.on = True
        x, y = crops(tokens)
        update(run, doctor, optimizer, next_token(model(x), y), (x, y), (model, 1.0))


@honest("dropout-of-0.5-checkpointed")
def _(run: Run) -> None:
    """Dropout of a half with gradient checkpointing, evaluated every ten steps."""
    model, tokens = Transformer(dropout=0.5, checkpoint=True, layers=3), corpus(50)
    optimizer = adamw(model)
    doctor = run.watch(model, optimizer)
    for step in range(80):
        x, y = crops(tokens)
        update(run, doctor, optimizer, next_token(model(x), y), (x, y), (model, 1.0))
        if step % 10 == 9:
            model.eval()
            with torch.no_grad():
                run.note(next_token(model(x), y))
            model.train()
