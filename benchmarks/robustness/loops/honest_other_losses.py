"""The third round of honest loops: losses and targets of other kinds."""

import copy

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.text import MASK, PAD, corpus, crops, padded, sentences, some, topics
from benchmarks.robustness.loops.training import adamw, next_token, update, warm_cosine
from benchmarks.robustness.loops.transformer import Classifier, Transformer
from torch import Tensor, nn
from torch.nn import functional as F


@honest("triplets")
def _(run: Run) -> None:
    """Triplet margin loss on sentence embeddings: an anchor, a noisy view of it, another sentence."""
    model, documents = Classifier(classes=16), sentences(31)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-4)
    doctor = run.watch(model, optimizer)
    for _ in range(80):
        ids, mask = padded(some(documents, 24))
        near = ids.masked_fill(torch.rand(ids.shape) < 0.15, MASK)
        anchor, positive = model(ids, mask), model(near, mask)
        loss = F.triplet_margin_loss(anchor, positive, anchor.roll(1, 0), margin=0.5)
        update(run, doctor, optimizer, loss, (ids, mask))


@honest("denoising-autoencoder")
def _(run: Run) -> None:
    """A narrow autoencoder of noisy waves, squared error, a rate that halves when the loss stalls."""
    model = nn.Sequential(
        nn.Linear(24, 32), nn.SELU(), nn.Linear(32, 3), nn.Linear(3, 32), nn.SELU(), nn.Linear(32, 24)
    )
    optimizer = torch.optim.RMSprop(model.parameters(), lr=2e-3)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=10)
    doctor = run.watch(model, optimizer, scheduler=scheduler)
    for _ in range(120):
        phase, speed = torch.rand(32, 1) * 6.28, 1 + torch.rand(32, 1)
        clean = (phase + speed * torch.linspace(0, 4, 24)).sin()
        loss = F.mse_loss(model(clean + 0.1 * torch.randn(32, 24)), clean)
        update(run, doctor, optimizer, loss, clean)
        scheduler.step(float(loss.detach()))


class Variational(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(20, 32), nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 20))
        self.moments = nn.Linear(32, 8)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_variance = self.moments(self.encode(x).relu()).chunk(2, -1)
        drawn = mean + (log_variance / 2).exp() * torch.randn_like(mean)
        distance = 0.5 * (mean**2 + log_variance.exp() - 1 - log_variance).sum(-1).mean()
        return self.decode(drawn), distance


@honest("variational-autoencoder")
def _(run: Run) -> None:
    """A variational autoencoder of pixels whose KL term is warmed up, so that the loss rises for a while."""
    model, prototypes = Variational(), (torch.rand(5, 20) < 0.5).float()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    doctor = run.watch(model, optimizer)
    for step in range(120):
        x = prototypes[torch.randint(0, 5, (32,))]
        x = torch.where(torch.rand(x.shape) < 0.05, 1 - x, x)
        made, distance = model(x)
        loss = F.binary_cross_entropy_with_logits(made, x, reduction="sum") / 32 + min(1.0, step / 60) * distance
        update(run, doctor, optimizer, loss, x)


@honest("two-heads")
def _(run: Run) -> None:
    """Next token and topic with fixed weights 1 and 0.2, one trunk, one padded batch."""
    model, documents = Transformer(), sentences(32)
    model.topic = nn.Linear(32, 4)
    optimizer = adamw(model)
    scheduler = warm_cosine(optimizer, 80)
    doctor = run.watch(model, optimizer, scheduler=scheduler)
    for _ in range(80):
        batch = some(documents)
        ids, mask = padded(batch)
        hidden = model.hidden(ids, mask.bool())
        labels = ids[:, 1:].masked_fill(mask[:, 1:] == 0, -100)
        words = F.cross_entropy(model.head(hidden[:, :-1]).flatten(0, 1), labels.flatten())
        last = hidden[torch.arange(len(ids)), mask.sum(1) - 1]
        loss = words + 0.2 * F.cross_entropy(model.topic(last), topics(batch))
        update(run, doctor, optimizer, loss, {"input_ids": ids, "attention_mask": mask, "labels": ids}, (model, 1.0))
        scheduler.step()


@honest("rare-class-focal")
def _(run: Run) -> None:
    """One class in sixteen, focal loss with γ = 2, a bias that starts at the class's rate."""
    model, documents = Classifier(classes=1), sentences(33)
    nn.init.constant_(model.classes.bias, -2.7)
    rare = [d for d in documents if int(d[1] + d[2]) % 8 == 0]
    common = [d for d in documents if int(d[1] + d[2]) % 8]
    optimizer = adamw(model, 1e-3)
    doctor = run.watch(model, optimizer)
    for _ in range(100):
        picked = some(rare, 2) + some(common, 30)
        order = torch.randperm(32)
        ids, mask = padded([picked[i] for i in order.tolist()])
        truth = (order < 2).float()
        logits = model(ids, mask).squeeze(-1)
        each = F.binary_cross_entropy_with_logits(logits, truth, reduction="none")
        right = torch.where(truth > 0, logits.sigmoid(), 1 - logits.sigmoid())
        loss = ((1 - right) ** 2 * each).mean()
        update(run, doctor, optimizer, loss, {"input_ids": ids, "attention_mask": mask, "labels": truth})


@honest("smoothing-of-0.3")
def _(run: Run) -> None:
    """Label smoothing of 0.3, as in small translation models, AdamW with one group."""
    model, tokens = Transformer(layers=3), corpus(34)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    scheduler = warm_cosine(optimizer, 80)
    doctor = run.watch(model, optimizer, scheduler=scheduler)
    for _ in range(80):
        x, y = crops(tokens)
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten(), label_smoothing=0.3)
        update(run, doctor, optimizer, loss, (x, y), (model, 1.0))
        scheduler.step()


@honest("mean-teacher")
def _(run: Run) -> None:
    """A few labelled sentences, many unlabelled: consistency with a moving average of the student, weight ramped up."""
    student, documents = Classifier(classes=4, dropout=0.1), sentences(35)
    teacher = copy.deepcopy(student).requires_grad_(False)
    known = documents[:32]
    optimizer = adamw(student, 1e-3)
    doctor = run.watch(student, optimizer)
    for step in range(100):
        batch = some(known, 8)
        ids, mask = padded(batch + some(documents, 16))
        logits = student(ids, mask)
        with torch.no_grad():
            wanted = teacher(ids, mask).softmax(-1)
        agreement = F.mse_loss(logits[8:].softmax(-1), wanted[8:])
        loss = F.cross_entropy(logits[:8], topics(batch)) + min(1.0, step / 50) * 3 * agreement
        update(run, doctor, optimizer, loss, {"input_ids": ids, "attention_mask": mask})
        with torch.no_grad():
            for slow, fast in zip(teacher.parameters(), student.parameters(), strict=True):
                slow.lerp_(fast, 0.03)


class Quantised(nn.Module):
    """A vector-quantised autoencoder: the nearest code forward, the gradient straight through."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(12, 6), nn.Linear(6, 12)
        self.codes = nn.Embedding(16, 6)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = self.encode(x)
        code = self.codes(torch.cdist(z, self.codes.weight).argmin(-1))
        commitment = F.mse_loss(code, z.detach()) + 0.25 * F.mse_loss(z, code.detach())
        return self.decode(z + (code - z).detach()), commitment


@honest("vector-quantised")
def _(run: Run) -> None:
    """A vector-quantised autoencoder with commitment loss: codes that nobody is near get no gradient."""
    model, centres = Quantised(), torch.randn(8, 12)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    doctor = run.watch(model, optimizer)
    for _ in range(120):
        x = centres[torch.randint(0, 8, (32,))] + 0.2 * torch.randn(32, 12)
        made, commitment = model(x)
        update(run, doctor, optimizer, F.mse_loss(made, x) + commitment, x)


@honest("tags")
def _(run: Run) -> None:
    """Several tags a sentence: a sigmoid each, positives weighed five times."""
    model, documents = Classifier(classes=6, pool="last", causal=True), sentences(36)
    optimizer = adamw(model, 1e-3)
    doctor = run.watch(model, optimizer)
    for _ in range(80):
        ids, mask = padded(some(documents, 16))
        tags = torch.stack([((ids == letter) & (ids != PAD)).any(1) for letter in range(5, 11)], 1).float()
        logits = model(ids, mask)
        loss = F.binary_cross_entropy_with_logits(logits, tags, pos_weight=torch.full((6,), 5.0))
        update(run, doctor, optimizer, loss, {"input_ids": ids, "attention_mask": mask, "labels": tags}, (model, 1.0))


@honest("deep-q")
def _(run: Run) -> None:
    """Deep Q-learning in a corridor: replay buffer, a target network copied now and then, a loss that rises with Q."""
    model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 2))
    target = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    doctor = run.watch(model, optimizer)
    place, memory, eye = 0, [], torch.eye(10)
    for step in range(150):
        for _ in range(4):
            greedy = int(model(eye[place]).argmax())
            action = run.draw.randrange(2) if run.draw.random() < max(0.1, 1 - step / 80) else greedy
            after = min(9, max(0, place + 2 * action - 1))
            memory.append((place, action, float(after == 9), after))
            place = 0 if after == 9 else after
        drawn = [memory[i] for i in torch.randint(0, len(memory), (32,)).tolist()]
        now, action, reward, after = (torch.tensor(column) for column in zip(*drawn, strict=True))
        with torch.no_grad():
            wanted = reward + 0.95 * (reward < 1) * target(eye[after]).max(-1).values
        loss = F.smooth_l1_loss(model(eye[now]).gather(1, action[:, None]).squeeze(1), wanted)
        update(run, doctor, optimizer, loss, eye[now], (model, 10.0))
        if step % 25 == 24:
            target.load_state_dict(model.state_dict())


@honest("prefix-language-model")
def _(run: Run) -> None:
    """A prefix is read both ways, only what follows is taught: the prefix's length differs by row."""
    model, tokens = Transformer(positions="rope", norm="rms", causal=False), corpus(37)
    optimizer = adamw(model)
    doctor = run.watch(model, optimizer)
    for _ in range(80):
        x, y = crops(tokens)
        prefix = torch.randint(4, 20, (8, 1))
        columns = torch.arange(32)
        seen = (columns[None, None, :] <= columns[None, :, None]) | (columns[None, None, :] < prefix[:, :, None])
        labels = y.masked_fill(columns < prefix - 1, -100)
        loss = next_token(model(x, seen), labels)
        update(run, doctor, optimizer, loss, {"input_ids": x, "labels": labels}, (model, 1.0))
