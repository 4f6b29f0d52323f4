"""Round 27j, honest and odd: stages, curricula, pruning, distillation and tuning."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import (
    Language,
    apart,
    class_outcome,
    cnn,
    documents,
    examples,
    fit,
    hf_trainer,
    judged,
    lit,
    loader,
    mlp,
    next_loss,
    outcome,
    pictures,
    tiny_bert,
)
from benchmarks.robustness.loops.round6_tools import classify
from benchmarks.robustness.loops.round7b_parts import SmallLlama
from benchmarks.robustness.loops.round7b_tools import near, taught, text_outcome
from torch import Tensor, nn
from torch.nn import functional as F


class FamilyThenMember(nn.Module):
    """Convolutions with a head for families and one for members; which one speaks is set from outside."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(*list(cnn())[:-1])
        self.family, self.member = nn.Linear(64, 3), nn.Linear(64, 9)
        self.stage = "member"

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = getattr(self, self.stage)(self.body(x))
        return out


def relatives(count: int, seed: int, own: torch.Generator) -> tuple[Tensor, Tensor]:
    """Pictures of nine kinds: three in each family differ in a quarter of the picture alone."""
    whole = (torch.randn(3, 1, 8, 8, generator=apart(seed + 3)) > 0).float()
    part = (torch.randn(9, 1, 4, 4, generator=apart(seed + 4)) > 0).float()
    y = torch.randint(0, 9, (count,), generator=own)
    clean = whole[y // 3].clone()
    clean[:, :, 2:6, 2:6] = part[y]
    return (0.25 + 0.5 * clean + 0.15 * torch.randn(clean.shape, generator=own)).clamp(0, 1), y


@honest("r27j-families-before-members")
def families_before_members(run: Run) -> None:
    """Lightning twice, convolutions learn which family a thing belongs to and only then which of the family it is, a
    curriculum from coarse labels to fine ones (Stretcu et al. 2020). Through the first fit the head that is wanted in
    the end is given no gradient; in the second one the loss begins far above where the first left it, with other
    labels, another number of classes, and an optimizer anew."""
    seed = run.draw.randrange(999)
    net = FamilyThenMember()
    class_outcome(run, net, relatives(360, seed, apart(1)))
    x, y = relatives(720, seed, apart(2))

    def adam(rate: float) -> Any:
        return lambda model: torch.optim.Adam(model.parameters(), lr=rate)

    net.stage = "family"
    fit(run, lit(net, classify, adam(3e-3)), loader(x, y // 3, size=32), 60)
    net.stage = "member"
    fit(run, lit(net, classify, adam(3e-3)), loader(x, y, size=32), 120)


@honest("r27j-zeroed-each-epoch-and-free-to-return")
def zeroed_each_epoch_and_free_to_return(run: Run) -> None:
    """accelerate, convolutions with soft filter pruning (He et al. 2018). At the end of each epoch the third of every
    layer's filters that is shortest is set to zero, and no mask holds them there: the next update moves them again like
    all others, and other filters may be the shortest next time. The loss jumps up with each epoch's end, and the
    training ends with a third of the filters at zero."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState

    AcceleratorState._reset_state(True)
    GradientState._reset_state()
    seed = run.draw.randrange(999)
    net = cnn()
    class_outcome(run, net, pictures(256, seed, own=apart(1)))
    engine = Accelerator(cpu=True)
    data = loader(*pictures(480, seed, own=apart(2)), size=32)
    model, optimizer, data = engine.prepare(net, torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9), data)
    doctor = run.watch(model, optimizer)
    for _ in range(9):
        for batch in data:
            optimizer.zero_grad()
            loss = classify(model, batch)
            engine.backward(loss)
            optimizer.step()
            doctor.step(loss, batch)
            run.note(loss)
        with torch.no_grad():
            for module in net.modules():
                if isinstance(module, nn.Conv2d):
                    lengths = module.weight.flatten(1).norm(dim=1)
                    module.weight[lengths.argsort()[: len(lengths) // 3]] = 0


@honest("r27j-fewer-words-hidden-from-step-to-step")
def fewer_words_hidden_from_step_to_step(run: Run) -> None:
    """transformers' Trainer, a BERT for hidden words with a masking ratio that decays (Yang et al. 2023). At the first
    step four words of ten are hidden and at the last one in fifteen; a callback writes the ratio into the collator, and
    the loss falls both for what is learned and because more of each sentence can be read."""
    from transformers import BertConfig, BertForMaskedLM, TrainerCallback

    language = Language(run.draw.randrange(999), first=2, sharp=2.5)
    sizes: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 16}
    model = BertForMaskedLM(
        BertConfig(**sizes, intermediate_size=64, max_position_embeddings=16, hidden_dropout_prob=0.0)
    )

    def hidden(rows: Tensor, share: float, own: torch.Generator | None = None) -> dict[str, Tensor]:
        chosen = torch.rand(rows.shape, generator=own) < share
        chosen[:, 5] |= ~chosen.any(1)
        return {"input_ids": rows.masked_fill(chosen, 1), "labels": rows.masked_fill(~chosen, -100)}

    class Collator:
        share = 0.4

        def __call__(self, rows: list[dict[str, Tensor]]) -> dict[str, Tensor]:
            return hidden(torch.stack([row["input_ids"] for row in rows]), self.share)

    collator = Collator()

    class Decay(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            collator.share = 0.4 + (0.07 - 0.4) * state.global_step / state.max_steps

    check = hidden(language.rows(200, 12, apart(1)), 0.15, apart(2))
    outcome(run, lambda: judged(model, lambda: model(**check).loss))
    data = examples(input_ids=language.rows(800, 12, apart(3)))
    more = {"data_collator": collator}
    trainer = hf_trainer(run, model, data, 200, more=more, per_device_train_batch_size=32, remove_unused_columns=False)
    trainer.add_callback(Decay())
    trainer.train()


@honest("r27j-goes-where-it-learns-most")
def goes_where_it_learns_most(run: Run) -> None:
    """Plain loop, a T5 writes words backwards, and a bandit chooses how long they are (Graves et al. 2017; Matiisen et
    al. 2019). Each batch has one length of five; its reward is by how much the update lowered that batch's own loss,
    read anew in evaluation mode, and lengths are drawn by a softmax over the sizes of the averaged rewards. The loss
    that is told goes up and down with the length that was drawn."""
    from transformers import T5Config, T5ForConditionalGeneration

    sizes: dict[str, Any] = {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_heads": 2, "num_layers": 1}
    sizes |= {"vocab_size": 12, "dropout_rate": 0.0, "pad_token_id": 0, "eos_token_id": 1}
    model = T5ForConditionalGeneration(T5Config(**sizes, decoder_start_token_id=0))

    def words(length: int, count: int, own: torch.Generator | None = None) -> dict[str, Tensor]:
        rows = torch.randint(2, 12, (count, length), generator=own)
        end = torch.ones(count, 1, dtype=torch.long)
        return {"input_ids": torch.cat([rows, end], 1), "labels": torch.cat([rows.flip(1), end], 1)}

    own = apart(1)
    check = [words(length, 60, own) for length in range(1, 6)]
    outcome(run, lambda: judged(model, lambda: torch.stack([model(**rows).loss for rows in check]).mean()))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    doctor = run.watch(model, optimizer)
    gains = torch.zeros(5)
    for _ in range(140):
        arm = int(torch.multinomial(0.9 * (gains.abs() / 0.05).softmax(0) + 0.1 / 5, 1))
        batch = words(arm + 1, 32)
        optimizer.zero_grad()
        loss = model(**batch).loss
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        gains[arm] = 0.7 * gains[arm] + 0.3 * (float(loss.detach()) - judged(model, lambda b=batch: model(**b).loss))
        doctor.step(loss, batch)
        run.note(loss)


class Draughtsman(nn.Module):
    """Pictures out of noise."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            *(nn.Linear(16, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 64), nn.BatchNorm1d(64, affine=False))
        )

    def forward(self, noise: Tensor) -> Tensor:
        out: Tensor = (0.45 + 0.3 * self.net(noise)).view(-1, 1, 8, 8)
        return out


@honest("r27j-over-pictures-nobody-took")
def over_pictures_nobody_took(run: Run) -> None:
    """Plain loop, a pupil learns from a teacher without data (Fang et al. 2019, data-free adversarial distillation). A
    draughtsman makes pictures on which the two differ as much as they can, with a loss below zero that goes down by
    what the pupil's loss then takes back; five steps of the pupil follow each of his. Neither loss says how well the
    pupil does, and no real picture or label is seen before the end."""
    seed = run.draw.randrange(999)
    teacher = cnn()
    taught(teacher, lambda: pictures(48, seed), classify, 120)
    teacher.eval().requires_grad_(False)
    pupil = nn.Sequential(
        *(nn.Conv2d(1, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(64, 4))
    )
    class_outcome(run, pupil, pictures(256, seed, own=apart(1)))
    draughtsman = Draughtsman()
    makes = torch.optim.Adam(draughtsman.parameters(), lr=1e-3)
    learns = torch.optim.Adam(pupil.parameters(), lr=5e-3)
    maker, learner = run.watch(draughtsman, makes), run.watch(pupil, learns)
    for _ in range(40):
        noise = torch.randn(64, 16)
        made = draughtsman(noise)
        loss = -F.l1_loss(pupil(made), teacher(made))
        makes.zero_grad()
        loss.backward()
        makes.step()
        maker.step(loss, noise)
        for _ in range(5):
            with torch.no_grad():
                made = draughtsman(torch.randn(64, 16))
                answers = teacher(made)
            loss = F.l1_loss(pupil(made), answers)
            learns.zero_grad()
            loss.backward()
            learns.step()
            learner.step(loss, (made, answers))
            run.note(loss)


@honest("r27j-the-most-moved-are-tuned-again")
def the_most_moved_are_tuned_again(run: Run) -> None:
    """Plain loop in two stages, a Llama is brought to a related language by lottery-ticket sparse tuning (Ansell et al.
    2022). First all weights are tuned; the twelfth of them that moved farthest is noted, everything goes back to where
    it began, and only those are tuned again, with all other gradients multiplied by zero. The loss of the second stage
    begins where the first did and need not come as far down."""
    first = Language(run.draw.randrange(999))
    second = near(first, run.draw.randrange(999), 0.6)
    model = SmallLlama(layers=1)
    taught(model, lambda: first.rows(24, 24), next_loss, 150)
    text_outcome(run, model, second)
    start = {k: p.detach().clone() for k, p in model.named_parameters()}

    def stage(masks: dict[str, Tensor] | None, steps: int) -> None:
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, steps)
        doctor = run.watch(model, optimizer, scheduler=schedule)
        for _ in range(steps):
            rows = second.rows(16, 24)
            optimizer.zero_grad()
            loss = next_loss(model, rows)
            loss.backward()
            if masks:
                for name, p in model.named_parameters():
                    p.grad.mul_(masks[name])
            optimizer.step()
            schedule.step()
            doctor.step(loss, rows)
            run.note(loss)

    stage(None, 70)
    moved = {k: (p.detach() - start[k]).abs() for k, p in model.named_parameters()}
    every = torch.cat([m.flatten() for m in moved.values()])
    bound = every.topk(len(every) // 12).values[-1]
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(start[name])
    stage({k: (m >= bound).float() for k, m in moved.items()}, 100)


class Adapted(nn.Module):
    """A layer's output part with a bottleneck behind it that can be passed by."""

    def __init__(self, inner: nn.Module, width: int = 32) -> None:
        super().__init__()
        self.inner, self.adapter = inner, mlp(width, 8, width, act=nn.GELU)
        nn.init.zeros_(self.adapter[-1].weight)
        nn.init.zeros_(self.adapter[-1].bias)
        self.skipped = False

    def forward(self, *inputs: Tensor) -> Tensor:
        out: Tensor = self.inner(*inputs)
        return out if self.skipped else out + self.adapter(out)


@honest("r27j-adapters-put-out-from-below-by-lot")
def adapters_put_out_from_below_by_lot(run: Run) -> None:
    """transformers' Trainer, a frozen BERT of three layers with adapters that serve with fewer of them as well
    (Rücklé et al. 2021, AdapterDrop). At each step a lot says below which layer all adapters are passed by, up to two
    of the three, so that in a third of the steps the lowest two are given no gradient and the lowest one in two thirds;
    in use, here, all of them speak."""
    from transformers import TrainerCallback

    model = tiny_bert(num_hidden_layers=3)
    taught(
        model,
        lambda: documents(32),
        lambda m, batch: m(input_ids=batch[0], attention_mask=batch[1].long(), labels=batch[2]).loss,
        100,
        2e-3,
    )
    model.requires_grad_(False)
    for layer in model.bert.encoder.layer:
        layer.output = Adapted(layer.output)
    model.classifier = nn.Linear(32, 3)
    renamed = torch.cat(
        [torch.zeros(1, dtype=torch.long), 1 + torch.randperm(15, generator=apart(run.draw.randrange(99)))]
    )

    def other(count: int, own: torch.Generator) -> dict[str, Tensor]:
        x, mask, y = documents(count, own)
        return {"input_ids": renamed[x], "attention_mask": mask.long(), "labels": y}

    class Lot(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            below = int(torch.randint(0, 3, ()))
            for index, layer in enumerate(model.bert.encoder.layer):
                layer.output.skipped = index < below

        def on_train_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            for layer in model.bert.encoder.layer:
                layer.output.skipped = False

    check = other(256, apart(1))
    outcome(run, lambda: judged(model, lambda: model(**check).loss))
    trainer = hf_trainer(run, model, examples(**other(800, apart(2))), 150)
    trainer.add_callback(Lot())
    trainer.train()
