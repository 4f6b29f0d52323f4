"""Public issues about how gradients are scaled, averaged and accumulated."""

import torch
from benchmarks.robustness.loops.case import Run, fault
from benchmarks.robustness.loops.public_issues_parts import (
    IGNORE,
    Chats,
    Decoder,
    answer_loss,
    batch_of,
    outcome,
    pick,
    shifted,
    step_down,
)
from benchmarks.robustness.loops.public_issues_rates import held_out
from benchmarks.robustness.loops.text import VOCABULARY, corpus, crops
from torch import Tensor, nn
from torch.nn import functional as F

FAMILY = "public issues: scale of gradients"


@fault(
    "issue-torchtune-2172",
    FAMILY,
    (r"gradient|learning rate|update", r"scal|world|worker|divid|averag|too small|factor|times smaller|eight"),
)
def averaged_and_divided(run: Run, slip: bool) -> None:
    """meta-pytorch/torchtune pull request 2172: the loss was summed over tokens and the gradients divided at the end
    by the tokens of all workers, but the all-reduce had averaged them over the workers already: every gradient came
    out smaller by the number of workers. Eight workers' shards in one process here, and SGD, which feels it."""
    workers = 8
    chats = Chats(run.draw.randrange(1000))
    train, held = chats.some(400), chats.some(100)
    model = Decoder(Chats.VOCABULARY)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.08, momentum=0.9)
    scheduler = step_down(optimizer, 100)
    doctor = run.watch(model, optimizer, scheduler=scheduler)
    outcome(run, lambda: answer_loss(model, held))
    for _ in range(100):
        optimizer.zero_grad()
        shards = [batch_of(pick(train, 2)) for _ in range(workers)]
        tokens = sum(int((labels[:, 1:] != IGNORE).sum()) for _, _, labels in shards)
        total = 0.0
        for ids, mask, labels in shards:
            loss = shifted(model(ids, mask), labels, "sum")
            (loss / workers).backward()  # the mean of the workers' gradients, as the all-reduce leaves it
            total += float(loss.detach())
        for p in model.parameters():
            if p.grad is not None:
                p.grad.mul_((1 if slip else workers) / tokens)
        optimizer.step()
        doctor.step(total / tokens, [{"input_ids": i, "attention_mask": m, "labels": y} for i, m, y in shards])
        scheduler.step()
        run.note(total / tokens)


class Engine:
    """Backward, unscale, clip, step, as DeepSpeed's engine does it for a model without sharding."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, loss_scaling: bool) -> None:
        self.model, self.optimizer = model, optimizer
        self.scale = 65536.0 if loss_scaling else 1.0

    def backward(self, loss: Tensor) -> None:
        loss.backward()  # no scaling under bfloat16

    def step(self) -> None:
        for p in self.model.parameters():
            if p.grad is not None:
                p.grad.div_(self.scale)
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()


@fault("issue-deepspeed-7839", FAMILY, (r"gradient|\bgrads?\b", r"scal|65536|tiny|too small|divid|\beps"))
def unscaled_without_scaling(run: Run, slip: bool) -> None:
    """deepspeedai/DeepSpeed pull request 7839 (issue 7837): with bfloat16 and ZeRO stage 0 the optimizer's wrapper kept
    a dynamic loss scale of 65536 and divided the gradients by it in its step, though the engine never multiplies
    the loss under bfloat16: gradients below Adam's epsilon (1e-6), clipping that never acts, hardly any training."""
    tokens = corpus(run.draw.randrange(1000))
    model = Decoder(VOCABULARY)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.98), eps=1e-6)
    engine = Engine(model, optimizer, slip)
    doctor = run.watch(model, optimizer)
    outcome(run, lambda: held_out(model, tokens[-6000:]))
    for _ in range(110):
        x, y = crops(tokens[:-6000])
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(model(x).flatten(0, 1).float(), y.flatten())
        optimizer.zero_grad()
        engine.backward(loss)
        engine.step()
        doctor.step(loss, (x, y))
        run.note(loss)


def pieces_of(tokens: Tensor, count: int, rows: int = 2) -> list[tuple[Tensor, Tensor]]:
    return [crops(tokens, rows) for _ in range(count)]


@fault(
    "issue-accelerate-1847",
    FAMILY,
    (r"accumul|micro|update|step", r"last batch|end of|epoch|uneven|unequal|single|fewer|differ|one micro|size"),
)
def last_batch_steps_for_each_piece(run: Run, slip: bool) -> None:
    """huggingface/accelerate issue 1847: at a prepared loader's last batch accelerate takes the end of the data for the
    end of the accumulation and lets every optimizer.step through; a loop that cuts each batch into micro-batches
    itself so updates on every single one of the last batch. Repaired: sync_with_dataloader off. Short epochs here,
    and SGD, so that the updates of the last batch are as large as all the others together."""
    from accelerate import Accelerator
    from accelerate.utils import GradientAccumulationPlugin
    from torch.utils.data import DataLoader, TensorDataset

    tokens = corpus(run.draw.randrange(1000))
    pieces = 8
    plugin = GradientAccumulationPlugin(num_steps=pieces, sync_with_dataloader=slip)
    accelerator = Accelerator(cpu=True, gradient_accumulation_plugin=plugin)
    bare = Decoder(VOCABULARY)
    loader = DataLoader(TensorDataset(*crops(tokens, 3 * 16)), 16, shuffle=True)
    model, optimizer, loader = accelerator.prepare(
        bare, torch.optim.SGD(bare.parameters(), lr=0.3, momentum=0.9), loader
    )
    doctor = run.watch(bare, optimizer.optimizer)
    sizes: list[int] = []
    outcome(run, lambda: sum(size < pieces for size in sizes) / len(sizes))
    waiting: list[tuple[Tensor, Tensor]] = []
    total = 0.0
    for _ in range(14):
        for batch, labels in loader:
            for x, y in zip(batch.split(2), labels.split(2), strict=True):
                with accelerator.accumulate(model):
                    loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
                    accelerator.backward(loss)
                    waiting.append((x, y))
                    total += float(loss.detach())
                    optimizer.step()
                    if accelerator.sync_gradients:
                        doctor.step(total / len(waiting), waiting)
                        run.note(total / len(waiting))
                        sizes.append(len(waiting))
                        waiting, total = [], 0.0
                    optimizer.zero_grad()


@fault("issue-diffusers-721", FAMILY, (r"clip", r"accumul|micro|each|every|before|partial|several|repeated"))
def clipped_at_every_micro_batch(run: Run, slip: bool) -> None:
    """huggingface/diffusers pull request 721 (issue 499): the training script clipped the gradients after each
    micro-batch's backward instead of once when they had been accumulated: what earlier micro-batches brought is
    shrunk again and again and the last ones rule the update. Eight micro-batches, the first of another kind of text
    than the last; the outcome is the loss on the first kind."""
    seed = run.draw.randrange(1000)
    early, late = corpus(seed), corpus(seed + 1)
    model = Decoder(VOCABULARY)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.4, momentum=0.9)
    doctor = run.watch(model, optimizer)
    outcome(run, lambda: held_out(model, early[-6000:]))
    for _ in range(60):
        batches = pieces_of(early[:-6000], 4) + pieces_of(late, 4)
        optimizer.zero_grad()
        total = 0.0
        for x, y in batches:
            loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
            loss.backward()
            total += float(loss.detach()) / len(batches)
            if slip:
                nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
        doctor.step(total, batches)
        run.note(total)
