"""Round 13b, honest and odd: workers and populations, tasks one after the other, few weights and few bits."""

import copy
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import (
    Classifier,
    Decoder,
    Language,
    apart,
    documents,
    examples,
    fit,
    hf_trainer,
    judged,
    loader,
    next_loss,
    outcome,
    tiny_bert,
)
from benchmarks.robustness.loops.round7b_parts import Listener, Reader, SmallLlama, sounds
from benchmarks.robustness.loops.round7b_tools import adam, taught, text_outcome
from torch import Tensor, nn
from torch.nn import functional as F


@honest("r13b-eight-steps-are-one-gradient")
def eight_steps_are_one_gradient(run: Run) -> None:
    """A small Llama with DiLoCo: three workers take eight steps of AdamW each, and how far they went, averaged, is
    written into `.grad` of the global model, which SGD with Nesterov's momentum of 0.9 applies at a rate of 0.7. The
    watched model never runs backward, its gradients are differences of weights, and workers keep their moments over all
    rounds."""
    language = Language(run.draw.randrange(999))
    model = SmallLlama()
    text_outcome(run, model, language)
    workers = [copy.deepcopy(model) for _ in range(3)]
    inner = [torch.optim.AdamW(w.parameters(), lr=3e-3) for w in workers]
    outer = torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
    doctor = run.watch(model, outer)
    for _ in range(14):
        losses = []
        for worker, optimizer in zip(workers, inner, strict=True):
            worker.load_state_dict(model.state_dict())
            for _ in range(8):
                rows = language.rows(8, 24)
                optimizer.zero_grad()
                loss = next_loss(worker, rows)
                loss.backward()
                optimizer.step()
                losses.append(loss.detach())
        with torch.no_grad():
            for p, *moved in zip(model.parameters(), *(w.parameters() for w in workers), strict=True):
                p.grad = p - torch.stack([*moved]).mean(0)
        outer.step()
        doctor.step(torch.stack(losses).mean(), rows)
        run.note(torch.stack(losses).mean())


@honest("r13b-weights-of-a-better-neighbour")
def weights_of_a_better_neighbour(run: Run) -> None:
    """Population based training of four LSTMs. Every twenty steps the two worst take over weights and moments of the
    two best, with the rate times 0.7 or 1.4: in the middle of a run a model becomes another one, and its rate moves
    without a schedule. Each has a doctor, and the first rates are from too small to too large, on purpose."""
    language = Language(run.draw.randrange(999))
    members = [Reader(12, core=nn.LSTM) for _ in range(4)]
    judge = language.rows(48, 24, apart(3))
    check = language.rows(96, 24, apart(1))
    outcome(run, lambda: min(judged(m, lambda m=m: next_loss(m, check)) for m in members))
    optimizers = [adam(m, rate) for m, rate in zip(members, (3e-4, 2e-3, 1e-2, 6e-2), strict=True)]
    doctors = [run.watch(m, o) for m, o in zip(members, optimizers, strict=True)]
    for step in range(1, 121):
        for model, optimizer, doctor in zip(members, optimizers, doctors, strict=True):
            rows = language.rows(12, 24)
            optimizer.zero_grad()
            loss = next_loss(model, rows)
            loss.backward()
            optimizer.step()
            doctor.step(loss, rows)
            run.note(loss)
        if step % 20 == 0:
            order = sorted(range(4), key=lambda i: judged(members[i], lambda: next_loss(members[i], judge)))
            for good, bad in zip(order[:2], order[2:], strict=True):
                members[bad].load_state_dict(members[good].state_dict())
                optimizers[bad].load_state_dict(copy.deepcopy(optimizers[good].state_dict()))
                optimizers[bad].param_groups[0]["lr"] *= 0.7 if torch.rand(()) < 0.5 else 1.4


@honest("r13b-second-task-in-the-gaps")
def second_task_in_the_gaps(run: Run) -> None:
    """PackNet on an encoder of texts: after the first task half of each matrix is set to zero, a few steps repair the
    rest, and the rest never moves again, because its gradients are set to zero by a mask. The second task, with a head
    of its own, has only the gaps; biases, norms and embeddings stay as the first task left them."""
    model = Classifier()
    first_head, second_head = model.head, nn.Linear(32, 3)
    x, keep, y = documents(256, apart(1))
    turned = torch.randperm(15, generator=apart(run.draw.randrange(999))) + 1
    other = torch.cat([torch.zeros(1, dtype=torch.long), turned])

    def loss_of(ids: Tensor, mask: Tensor, labels: Tensor, second: bool) -> Tensor:
        model.head = second_head if second else first_head
        return F.cross_entropy(model(other[ids] if second else ids, mask), labels)

    outcome(run, lambda: judged(model, lambda: loss_of(x, keep, y, False) + loss_of(x, keep, y, True)))
    matrices = [m.weight for m in model.block.modules() if isinstance(m, nn.Linear)]
    free: dict[nn.Parameter, Tensor] = {}

    def trained(steps: int, second: bool, allowed: Any, rate: float) -> None:
        model.head = second_head if second else first_head
        optimizer = adam(model, rate)
        doctor = run.watch(model, optimizer)
        for _ in range(steps):
            batch = documents(24)
            optimizer.zero_grad()
            loss = loss_of(*batch, second)
            loss.backward()
            for p in model.parameters():
                if p.grad is not None:
                    p.grad.mul_(allowed(p))
            optimizer.step()
            doctor.step(loss, batch)
            run.note(loss)

    trained(60, False, lambda p: 1.0, 5e-3)
    with torch.no_grad():
        for weight in matrices:
            free[weight] = (weight.abs() < weight.abs().median()).float()
            weight.mul_(1 - free[weight])
    trained(20, False, lambda p: 1 - free.get(p, 0.0), 2e-3)
    heads = set(second_head.parameters())
    trained(80, True, lambda p: 1.0 if p in heads else free.get(p, 0.0), 1e-2)


class Rounded(nn.Module):
    """A linear layer of whole numbers from -8 to 7 times a step for each row; whether a weight goes up or down is
    learned (AdaRound, Nagel et al. 2020), softly at first."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        weight = layer.weight.detach()
        self.register_buffer("scale", weight.abs().amax(1, keepdim=True) / 7)
        self.register_buffer("low", (weight / self.scale).floor())
        rest = (weight / self.scale - self.low).clamp(0.01, 0.99)
        self.upward = nn.Parameter(-(1.2 / (rest + 0.1) - 1).log())
        self.bias = None if layer.bias is None else layer.bias.detach()
        self.hard = False

    def share(self) -> Tensor:
        return (self.upward.sigmoid() * 1.2 - 0.1).clamp(0, 1)

    def forward(self, x: Tensor) -> Tensor:
        share = (self.share() > 0.5).float() if self.hard else self.share()
        return F.linear(x, (self.low + share).clamp(-8, 7) * self.scale, self.bias)


@honest("r13b-up-or-down-is-learned")
def up_or_down_is_learned(run: Run) -> None:
    """A trained GPT is brought to four bits by AdaRound. No weight of it learns: for each there is a number that says
    whether it is rounded up or down, the loss is the squared distance to the full model's logits and from step 32 on a
    penalty on indecision that gets sharper, with which the loss jumps a thousandfold, as it should; there are no
    labels."""
    language = Language(run.draw.randrange(999))
    full = Decoder(12)
    taught(full, lambda: language.rows(16, 24), next_loss, 150)
    full.requires_grad_(False)
    model = copy.deepcopy(full)
    for block in model.blocks:
        block.attention.qkv, block.attention.out = Rounded(block.attention.qkv), Rounded(block.attention.out)
        block.feed[0], block.feed[2] = Rounded(block.feed[0]), Rounded(block.feed[2])
    rounded = [m for m in model.modules() if isinstance(m, Rounded)]
    check = language.rows(96, 24, apart(1))

    def distance() -> Tensor:
        for m in rounded:
            m.hard = True
        value = F.mse_loss(model(check), full(check))
        for m in rounded:
            m.hard = False
        return value

    outcome(run, lambda: judged(model, distance))
    optimizer = torch.optim.Adam([m.upward for m in rounded], lr=0.03)
    doctor = run.watch(model, optimizer)
    for step in range(160):
        rows = language.rows(12, 24)
        power = 20 - 18 * max(0.0, (step - 32) / 128)
        undecided = sum((1 - (2 * m.share() - 1).abs() ** power).sum() for m in rounded)
        loss = F.mse_loss(model(rows), full(rows)) + (2e-5 * undecided if step >= 32 else 0.0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        doctor.step(loss, rows)
        run.note(loss)


@honest("r13b-held-where-it-mattered")
def held_where_it_mattered(run: Run) -> None:
    """transformers' Trainer, BERT with elastic weight consolidation. After the first task gradients of single rows are
    squared and summed without any update; in the second task every weight is drawn back by its own importance, times a
    thousand, so that the loss is in part a distance from old weights. Both tasks share the head, and rows of the first
    are gone."""
    from transformers import Trainer

    model = tiny_bert(classes=3)

    def texts(count: int, second: bool, own: torch.Generator | None = None) -> dict[str, Tensor]:
        x, keep, y = documents(count, own, classes=3)
        return {
            "input_ids": x.flip(1) if second else x,
            "attention_mask": (keep.flip(1) if second else keep).long(),
            "labels": y,
        }

    checks = [texts(192, second, apart(1)) for second in (False, True)]
    outcome(run, lambda: judged(model, lambda: sum(model(**check).loss for check in checks)))
    taught(model, lambda: texts(16, False), lambda m, b: m(**b).loss, 60)
    anchors = {n: p.detach().clone() for n, p in model.named_parameters()}
    worth = {n: torch.zeros_like(p) for n, p in model.named_parameters()}
    old = texts(64, False, apart(5))
    for i in range(64):
        model.zero_grad()
        model(**{k: v[i : i + 1] for k, v in old.items()}).loss.backward()
        for n, p in model.named_parameters():
            worth[n] += p.grad.square() / 64
    model.zero_grad()

    class Elastic(Trainer):  # type: ignore[misc]
        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **more: Any) -> Any:
            out = model(**inputs)
            pull = sum((worth[n] * (p - anchors[n]).square()).sum() for n, p in model.named_parameters())
            loss = out.loss + 1000 * pull
            return (loss, out) if return_outputs else loss

    hf_trainer(run, model, examples(**texts(480, True)), 70, Elastic, learning_rate=2e-3).train()


@honest("r13b-dropped-and-grown-elsewhere")
def dropped_and_grown_elsewhere(run: Run) -> None:
    """Lightning, convolutions over sounds with RigL (Evci et al. 2020). Seven weights in ten are zero all along; every
    fifteen steps the smallest of the others are set to zero, and as many begin anew, at zero, where the gradient of a
    weight that is not there is largest. After every update what is not there is put back to zero."""
    import lightning

    net = Listener()
    x, y = sounds(256, apart(1), 0.5)
    outcome(run, lambda: judged(net, lambda: F.cross_entropy(net(x), y)))

    class RigL(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.there = net, {}
            for p in (net.body[0].weight, net.body[2].weight):
                self.there[p] = torch.rand_like(p) < 0.3
                p.data.mul_(self.there[p])

        def training_step(self, batch: Any, index: int) -> Tensor:
            return F.cross_entropy(self.net(batch[0]), batch[1])

        def on_before_optimizer_step(self, optimizer: Any) -> None:
            if not 0 < self.global_step < 120 or self.global_step % 15:
                return
            for p, there in self.there.items():
                count = int(0.2 * (1 - self.global_step / 120) * int(there.sum()))
                weak = p.detach().abs().masked_fill(~there, float("inf")).flatten().topk(count, largest=False).indices
                wanted = p.grad.abs().masked_fill(there, -1.0).flatten().topk(count).indices
                there.view(-1)[weak] = False
                there.view(-1)[wanted] = True

        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            for p, there in self.there.items():
                p.data.mul_(there)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)

    fit(run, RigL(), loader(*sounds(640, noise=0.5), size=32), 160)
