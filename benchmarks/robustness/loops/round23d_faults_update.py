"""Round 23d, mistakes in what moves weights: groups, rates, decay, moments, averages, ranks, what stays frozen."""

import copy
import math
import tempfile
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import (
    Decoder,
    Language,
    apart,
    class_outcome,
    cnn,
    documents,
    examples,
    fit,
    hf_arguments,
    hf_trainer,
    judged,
    language_outcome,
    lit,
    loader,
    mlp,
    next_loss,
    number_outcome,
    outcome,
    pictures,
    table,
    tiny_bert,
)
from benchmarks.robustness.loops.round6_tools import classify, regress
from benchmarks.robustness.loops.round7b_parts import Reader
from benchmarks.robustness.loops.round7b_tools import adam, near, taught
from benchmarks.robustness.loops.round8b_parts import causal_outcome, llama, text_class_outcome
from benchmarks.robustness.loops.round23d_parts import Lion, TwoTasks, Windows, slip, thirds, waves
from torch import Tensor, nn
from torch.nn import functional as F


@slip("r23d-one-rate-for-every-group")
def one_rate_for_every_group(run: Run, wrong: bool) -> None:
    """Plain loop, a GRU that knows a language gets a new head, for the same words under other names, and few texts. The
    body's group has a hundredth of the head's rate; the warm-up and cosine, written by hand, give each group the
    head's. The twin multiplies each group's own rate. Judged on other texts."""
    language = Language(run.draw.randrange(999))
    net = Reader(12)
    known = language.rows(1200, 24)
    taught(net, lambda: known[torch.randint(0, 1200, (32,))], next_loss, 200)
    net.head = nn.Linear(32, 12)
    names = torch.randperm(12)

    def loss(m: nn.Module, rows: Tensor) -> Tensor:
        return F.cross_entropy(m(rows[:, :-1]).flatten(0, 1), names[rows[:, 1:]].flatten())

    check = language.rows(96, 24, apart(901))
    outcome(run, lambda: judged(net, lambda: loss(net, check)))
    texts = language.rows(40, 24)
    body = [p for name, p in net.named_parameters() if not name.startswith("head")]
    groups: list[dict[str, Any]] = [{"params": body, "lr": 2e-4}, {"params": net.head.parameters(), "lr": 2e-2}]
    optimizer = torch.optim.AdamW(groups, weight_decay=0.01)
    own_rates = [group["lr"] for group in optimizer.param_groups]
    doctor = run.watch(net, optimizer)
    for step in range(100):
        factor = min((step + 1) / 10, 0.5 + 0.5 * math.cos(math.pi * step / 100))
        for group, rate in zip(optimizer.param_groups, own_rates, strict=True):
            group["lr"] = factor * (2e-2 if wrong else rate)
        rows = texts[torch.randint(0, 40, (8,))]
        optimizer.zero_grad()
        value = loss(net, rows)
        value.backward()
        optimizer.step()
        doctor.step(value, rows)
        run.note(value)


@slip("r23d-cut-by-slopes-of-the-still-part")
def cut_by_slopes_of_the_still_part(run: Run, wrong: bool) -> None:
    """Plain loop, a CNN that was trained with one camera, kept as it is by leaving it out of the optimizer, and in
    front of it a matrix of colours for another camera, which learns. The CNN's gradients are computed on the way,
    nobody clears them, since the optimizer clears its own, and clipping takes the norm of all gradients: the matrix's,
    far smaller, is scaled down in each step. The twin's CNN needs no gradient. Judged on other pictures."""
    seed = run.draw.randrange(999)
    body = cnn(3, norm=False)
    taught(body, lambda: pictures(32, seed, 3), classify, 150)
    front = nn.Conv2d(3, 3, 1)
    nn.init.dirac_(front.weight)
    nn.init.zeros_(front.bias)  # type: ignore[arg-type]
    net = nn.Sequential(front, body)
    body.requires_grad_(wrong)
    mixing = torch.tensor([[0.1, 0.7, 0.2], [0.2, 0.1, 0.7], [0.7, 0.2, 0.1]])

    def other_camera(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        x, y = pictures(count, seed, 3, own)
        return torch.einsum("ij,bjhw->bihw", mixing, x), y

    class_outcome(run, net, other_camera(384, apart(1)))
    x, y = other_camera(400)
    optimizer = torch.optim.SGD(front.parameters(), lr=0.005, momentum=0.9)
    doctor = run.watch(net, optimizer)
    for _ in range(120):
        rows = torch.randint(0, len(x), (16,))
        batch = x[rows], y[rows]
        optimizer.zero_grad()
        value = classify(net, batch)
        value.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        doctor.step(value, batch)
        run.note(value)


@slip("r23d-shrinks-by-the-whole-decay")
def shrinks_by_the_whole_decay(run: Run, wrong: bool) -> None:
    """Lightning, a small GPT by a Lion of one's own. Before each update weights are multiplied by one less the decay,
    and not by one less the decay times the rate: they shrink by two hundredths in each step. The twin multiplies by the
    rate. Judged by the cross-entropy of other texts."""
    language = Language(run.draw.randrange(999))
    net = Decoder(12)
    language_outcome(run, net, language)
    data = loader(language.rows(480, 24))
    module = lit(net, lambda m, batch: next_loss(m, batch[0]), lambda m: Lion(m.parameters(), 2e-3, 0.02, not wrong))
    fit(run, module, data, 120)


@slip("r23d-moments-from-the-trial")
def moments_from_the_trial(run: Run, wrong: bool) -> None:
    """Plain loop, an MLP whose rate is found by trying: the rate grows from 1e-5 to 10, then the weights are put back.
    Adam's moments are not: its second moment is that of the gradients at the end of the trial, and training creeps. The
    twin puts the optimizer back, too. Judged on other rows."""
    seed = run.draw.randrange(999)
    net = mlp(6, 64, 64, 1, act=nn.SiLU)
    number_outcome(run, net, table(384, seed, apart(1)), log=True)
    x, y = table(480, seed)
    optimizer = adam(net, 1e-5)

    def batch() -> tuple[Tensor, Tensor]:
        rows = torch.randint(0, len(x), (16,))
        return x[rows], y[rows]

    def stepped(data: Any) -> Tensor:
        optimizer.zero_grad()
        value = regress(net, data)
        value.backward()
        optimizer.step()
        return value.detach()

    weights, state = copy.deepcopy(net.state_dict()), copy.deepcopy(optimizer.state_dict())
    rate, smooth, tried = 1e-5, 0.0, []
    for step in range(73):
        optimizer.param_groups[0]["lr"] = rate
        smooth = 0.8 * smooth + 0.2 * float(stepped(batch()))
        tried.append((smooth / (1 - 0.8 ** (step + 1)), rate))
        rate *= 10 ** (6 / 72)
    net.load_state_dict(weights)
    if not wrong:
        optimizer.load_state_dict(state)
    optimizer.param_groups[0]["lr"] = min(tried)[1] / 10
    doctor = run.watch(net, optimizer)
    for _ in range(80):
        data = batch()
        value = stepped(data)
        doctor.step(value, data)
        run.note(value)


@slip("r23d-eighty-steps-already-behind-it")
def eighty_steps_already_behind_it(run: Run, wrong: bool) -> None:
    """transformers' Trainer, a Llama that goes on from a checkpoint with texts of another kind. The checkpoint is given
    as one to resume from: of 120 steps 80 count as done, and the last forty have the end of a linear schedule. The twin
    takes the weights alone and makes 120 steps. Judged on other texts of the new kind."""
    old = Language(run.draw.randrange(999))
    new = near(old, run.draw.randrange(999))
    net = llama(12)

    def rows(language: Language) -> Any:
        ids = language.rows(480, 20)
        return examples(input_ids=ids, labels=ids)

    from transformers import PrinterCallback, Trainer
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as folder:
        saving: dict[str, Any] = {
            "output_dir": folder,
            "save_strategy": "steps",
            "save_steps": 80,
            "learning_rate": 3e-3,
        }
        before = Trainer(model=net, args=hf_arguments(run, 80, **saving), train_dataset=rows(old))
        before.remove_callback(PrinterCallback)
        before.train()
        causal_outcome(run, net, new)
        trainer = hf_trainer(run, net, rows(new), 120, learning_rate=3e-3)
        trainer.train(resume_from_checkpoint=f"{folder}/checkpoint-80" if wrong else None)


@slip("r23d-the-remainder-belongs-to-nobody")
def the_remainder_belongs_to_nobody(run: Run, wrong: bool) -> None:
    """Plain loop, a small GPT whose tensors are dealt to eight ranks, each of which updates its own; a group of the
    optimizer is a rank. Each has 29 // 8 tensors, and the last five, with the head, belong to none. The twin rounds up.
    Judged by the cross-entropy of other texts."""
    language = Language(run.draw.randrange(999))
    net = Decoder(12, layers=2)
    language_outcome(run, net, language)
    tensors, ranks = list(net.parameters()), 8
    share = len(tensors) // ranks if wrong else math.ceil(len(tensors) / ranks)
    shards = [tensors[rank * share : (rank + 1) * share] for rank in range(ranks)]
    optimizer = torch.optim.AdamW([{"params": shard} for shard in shards], lr=3e-3, weight_decay=0.01)
    doctor = run.watch(net, optimizer)
    for _ in range(100):
        rows = language.rows(16, 24)
        optimizer.zero_grad()
        value = next_loss(net, rows)
        value.backward()
        optimizer.step()
        doctor.step(value, rows)
        run.note(value)


@slip("r23d-gradients-paired-by-their-order")
def gradients_paired_by_their_order(run: Run, wrong: bool) -> None:
    """Plain loop, two ranks simulated, a network with a head for each of two tasks; each rank draws a task for each
    step. Gradients are laid end to end and averaged, without tensors that have none: where the tasks differ, one head's
    gradient is averaged with the other's, and each rank moves another head. The twin fills up with zeros. Judged on
    both tasks, by rank 0."""
    seed = run.draw.randrange(999)
    ranks = [TwoTasks()]
    ranks.append(copy.deepcopy(ranks[0]))
    net = ranks[0]
    checks = [pictures(256, seed + task, own=apart(1)) for task in range(2)]

    def both() -> Tensor:
        return torch.stack([F.cross_entropy(net(x, task), y) for task, (x, y) in enumerate(checks)]).mean()

    outcome(run, lambda: judged(net, both))
    sets = [pictures(480, seed + task) for task in range(2)]
    optimizers = [adam(model, 3e-3) for model in ranks]
    doctor = run.watch(net, optimizers[0])
    for _ in range(150):
        said = []
        for model, optimizer in zip(ranks, optimizers, strict=True):
            task = int(torch.randint(0, 2, ()))
            rows = torch.randint(0, 480, (16,))
            x, y = (column[rows] for column in sets[task])
            optimizer.zero_grad()
            value = F.cross_entropy(model(x, task), y)
            value.backward()
            said.append((value, (x, task, y)))
            if not wrong:
                for p in model.parameters():
                    p.grad = torch.zeros_like(p) if p.grad is None else p.grad
        flat = [torch.cat([p.grad.flatten() for p in m.parameters() if p.grad is not None]) for m in ranks]
        mean = torch.stack(flat).mean(0)
        for model, optimizer in zip(ranks, optimizers, strict=True):
            begin = 0
            for p in model.parameters():
                if p.grad is not None:
                    p.grad.copy_(mean[begin : begin + p.numel()].view_as(p))
                    begin += p.numel()
            optimizer.step()
        doctor.step(*said[0])
        run.note(said[0][0])


@slip("r23d-adapters-below-an-untaught-head")
def adapters_below_an_untaught_head(run: Run, wrong: bool) -> None:
    """transformers' Trainer, adapters by PEFT on a BERT that gets a new head. The adapters' settings do not say that
    the head is to be learned, too, and it stays frozen as it was drawn. The twin names it among the modules to save.
    Judged by the cross-entropy of other texts."""
    from peft import LoraConfig, get_peft_model

    net = tiny_bert()

    def known(m: nn.Module, batch: Any) -> Tensor:
        loss: Tensor = m(input_ids=batch[0], attention_mask=batch[1], labels=batch[2]).loss
        return loss

    taught(net, lambda: documents(32), known, 150, 2e-3)
    net.classifier = nn.Linear(32, 3)
    nn.init.normal_(net.classifier.weight, std=0.02)
    nn.init.zeros_(net.classifier.bias)
    where = ["query", "key", "value", "attention.output.dense"]
    settings = LoraConfig(r=4, lora_alpha=8, target_modules=where, modules_to_save=None if wrong else ["classifier"])
    tuned = get_peft_model(net, settings)
    text_class_outcome(run, tuned, thirds(384, apart(1)))
    hf_trainer(run, tuned, examples(**thirds(640)), 120, learning_rate=1e-2).train()


@slip("r23d-patience-of-epochs-asked-each-batch")
def patience_of_epochs_asked_each_batch(run: Run, wrong: bool) -> None:
    """Lightning, a GRU that says how a wave goes on. The rate is cut to a third where the loss has not fallen for more
    than three epochs, and that is asked after every batch: after the luckiest batch it is cut every few steps, and soon
    there is none. The twin asks after each epoch. Judged on other waves."""
    import lightning

    net = Windows()
    number_outcome(run, net, waves(384, apart(1)))

    class Lit(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def training_step(self, batch: Any, index: int) -> Tensor:
            loss = regress(self.net, batch)
            self.log("loss", loss, on_step=wrong, on_epoch=not wrong)
            return loss

        def configure_optimizers(self) -> Any:
            optimizer = adam(self.net, 5e-3)
            schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.3, patience=3)
            told = {"scheduler": schedule, "monitor": "loss", "interval": "step" if wrong else "epoch"}
            return {"optimizer": optimizer, "lr_scheduler": told}

    fit(run, Lit(), loader(*waves(240)), 120)


@slip("r23d-average-moved-when-it-is-logged")
def average_moved_when_it_is_logged(run: Run, wrong: bool) -> None:
    """Plain loop, a CNN with few labels that should agree with a moving average of itself. The average is moved in the
    branch that reports, every twentieth step, with a decay for every step: it stays near the weights as they were
    drawn, and pulls there. The twin moves it after each step. Judged by the average on other pictures."""
    seed = run.draw.randrange(999)
    net = cnn(norm=False)
    average = copy.deepcopy(net).requires_grad_(False)
    class_outcome(run, average, pictures(384, seed, own=apart(1)))
    x, y = pictures(64, seed)
    unlabelled = pictures(480, seed)[0]
    optimizer = adam(net, 3e-3)
    doctor = run.watch(net, optimizer)
    for step in range(140):
        rows, others = torch.randint(0, len(x), (16,)), torch.randint(0, len(unlabelled), (32,))
        u = unlabelled[others]
        with torch.no_grad():
            target = average(u + 0.1 * torch.randn_like(u)).softmax(1)
        optimizer.zero_grad()
        agree = (net(u + 0.1 * torch.randn_like(u)).softmax(1) - target).square().sum(1).mean()
        value = F.cross_entropy(net(x[rows]), y[rows]) + agree
        value.backward()
        optimizer.step()
        doctor.step(value, (x[rows], y[rows], u))
        run.note(value)
        if not wrong or step % 20 == 0:
            with torch.no_grad():
                for a, p in zip(average.parameters(), net.parameters(), strict=True):
                    a.lerp_(p, 0.05)
