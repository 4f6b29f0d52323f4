"""Round 23j, honest and odd: tuning of given models by adapters, preferences, risks, and teachers."""

import copy
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import (
    Language,
    apart,
    cnn,
    examples,
    fit,
    hf_arguments,
    hf_trainer,
    judged,
    lit,
    loader,
    outcome,
    pictures,
    tiny_gpt2,
    watching,
)
from benchmarks.robustness.loops.round6_tools import classify, prepared
from benchmarks.robustness.loops.round7b_parts import SmallLlama, Translator
from benchmarks.robustness.loops.round7b_tools import adam, near, taught, update
from benchmarks.robustness.loops.round10a_tools import adamw
from torch import Tensor, nn
from torch.nn import functional as F


@honest("r23j-vectors-lent-from-one-bank")
def vectors_lent_from_one_bank(run: Run) -> None:
    """transformers' Trainer, GPT-2 by peft's VB-LoRA (Li et al. 2024). Every piece of every low-rank factor is a
    mixture of the best two vectors of one bank that all layers share; the choice has ten times the rate of the bank,
    most of its logits have no gradient in a step, and the bank begins at hundredths."""
    import peft

    first = Language(run.draw.randrange(999), 15, first=1)
    second = near(first, run.draw.randrange(999), 0.4)
    second.first = 1
    model = tiny_gpt2()
    taught(model, lambda: first.rows(24, 20), lambda m, rows: m(input_ids=rows, labels=rows).loss, 140)
    targets = ["c_attn", "c_proj", "c_fc"]
    config = peft.VBLoRAConfig(r=4, num_vectors=48, vector_length=16, topk=2, target_modules=targets)
    tuned = peft.get_peft_model(model, config)
    check = second.rows(128, 20, apart(1))
    outcome(run, lambda: judged(tuned, lambda: tuned(input_ids=check, labels=check).loss))
    named = [(n, p) for n, p in tuned.named_parameters() if p.requires_grad]
    groups = [
        {"params": [p for n, p in named if "vector_bank" in n], "lr": 5e-3},
        {"params": [p for n, p in named if "vector_bank" not in n], "lr": 5e-2},
    ]
    optimizer = torch.optim.AdamW(groups, weight_decay=0.0)
    rows = second.rows(640, 20, apart(run.draw.randrange(999)))
    hf_trainer(
        run,
        tuned,
        examples(input_ids=rows, labels=rows),
        100,
        more={"optimizers": (optimizer, None)},
        lr_scheduler_type="constant",
    ).train()


@honest("r23j-one-preference-in-five-is-turned-round")
def one_preference_in_five_is_turned_round(run: Run) -> None:
    """TRL's trainer of preferences with its robust loss (Chowdhury et al. 2024). It is known that a fifth of the pairs
    is the wrong way round, and the loss is made such that its mean is that of clean pairs: a difference of two
    losses over three fifths, which can be below zero for a batch and wanders far from it."""
    import datasets
    import transformers
    import trl
    from benchmarks.robustness.loops.round5_faults_tuning import word_tokenizer

    datasets.disable_progress_bars()
    transformers.logging.set_verbosity_error()
    key = torch.randperm(6, generator=apart(run.draw.randrange(999))) + 4
    ids = torch.arange(6)[:, None] + 4
    model = tiny_gpt2()

    def answered() -> Tensor:
        return torch.cat([torch.randint(4, 10, (32, 2)), torch.full((32, 1), 2)], 1)

    taught(model, answered, lambda m, rows: m(input_ids=rows, labels=rows).loss, 60)

    def unlikely() -> Tensor:
        """How much of the six answers' chance is not the right one's."""
        chance = model(input_ids=ids).logits[:, -1, 4:10].softmax(1)
        return 1 - chance[torch.arange(6), key - 4].mean()

    outcome(run, lambda: judged(model, unlikely))
    rows = []
    for _ in range(480):
        asked, other, turned = run.draw.randrange(6), run.draw.randrange(5), run.draw.random() < 0.2
        right = int(key[asked])
        pair = [right, 4 + (right - 4 + 1 + other) % 6]
        good, bad = pair[::-1] if turned else pair
        rows.append({"prompt": f"w{asked + 4}", "chosen": f" w{good}", "rejected": f" w{bad}"})
    told, telling = watching(run, trl.DPOTrainer)
    settings: dict[str, Any] = {"loss_type": ["robust"], "label_smoothing": 0.2, "beta": 0.1, "learning_rate": 5e-3}
    settings |= {"bf16": False, "gradient_checkpointing": False, "per_device_train_batch_size": 32}
    arguments = hf_arguments(run, 100, trl.DPOConfig, **settings)
    data = datasets.Dataset.from_list(rows)
    trainer = told(
        model=model,
        ref_model=copy.deepcopy(model),
        args=arguments,
        train_dataset=data,
        processing_class=word_tokenizer(16),
    )
    trainer.add_callback(telling)
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()


def relations(x: Tensor) -> tuple[Tensor, Tensor]:
    """All distances of a batch over their mean, and the cosines of all angles between three rows."""
    apart_by = torch.cdist(x, x)
    apart_by = apart_by / apart_by[apart_by > 0].mean()
    way = F.normalize(x[None] - x[:, None], dim=2)
    return apart_by, way @ way.transpose(1, 2)


@honest("r23j-only-how-rows-lie-to-one-another")
def only_how_rows_lie_to_one_another(run: Run) -> None:
    """Lightning, a small network of pictures learns from a larger one without labels and without a single target of its
    own (relational distillation, Park et al. 2019): only distances and angles between the rows of a batch are to be
    the teacher's. The two have other widths; turning or moving all outputs costs nothing."""
    seed = run.draw.randrange(999)
    teacher = cnn()
    taught(teacher, lambda: pictures(48, seed), classify, 80)
    teacher.eval().requires_grad_(False)
    body = teacher[:-2]
    pupil = nn.Sequential(nn.Conv2d(1, 6, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(96, 16))
    x, y = pictures(240, seed, own=apart(1))

    def confused() -> Tensor:
        """How unlikely a row's class is among its neighbours (Goldberger et al. 2005)."""
        scores = -20 * relations(pupil(x))[0].fill_diagonal_(torch.inf)
        same = (y[:, None] == y).float()
        return 1 - (scores.softmax(1) * same).sum(1).mean()

    outcome(run, lambda: judged(pupil, confused))

    def loss(net: nn.Module, batch: Any) -> Tensor:
        with torch.no_grad():
            distances, angles = relations(body(batch[0]))
        ours = relations(net(batch[0]))
        return F.smooth_l1_loss(ours[0], distances) + 2 * F.smooth_l1_loss(ours[1], angles)

    rows = pictures(960, seed, own=apart(seed + 1))[0]
    fit(run, lit(pupil, loss, adamw(5e-3)), loader(rows, size=32), 120)


@honest("r23j-risk-among-eight-samples")
def risk_among_eight_samples(run: Run) -> None:
    """Plain loop, minimum risk training of a translator (Shen et al. 2016). Eight sampled translations and the right
    one are weighed by the model's own chances, flattened and normalised among themselves, and the loss is the mean
    share of wrong words under these weights: it has no logarithm, lies far below one, and has no gradient where all
    nine are alike."""
    words, own = 10, apart(run.draw.randrange(999))
    means = torch.randperm(words, generator=own)

    def pairs(count: int, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        source = torch.randint(0, words, (count, 5), generator=generator)
        return source, means[source.flip(1)]

    model = Translator(words)

    def shown(right: Tensor) -> Tensor:
        return torch.cat([torch.full((len(right), 1), words), right[:, :-1]], 1)

    def likelihood(net: Any, batch: Any) -> Tensor:
        return F.cross_entropy(net(batch[0], shown(batch[1])).flatten(0, 1), batch[1].flatten())

    taught(model, lambda: pairs(48), likelihood, 200)

    @torch.no_grad()
    def said(source: Tensor, own: torch.Generator | None = None) -> Tensor:
        out = torch.full((len(source), 1), words)
        state = model.encoder[1](model.encoder[0](source))[1]
        for _ in range(5):
            hidden, state = model.decoder[1](model.decoder[0](out[:, -1:]), state)
            out = torch.cat([out, torch.multinomial(model.head(hidden[:, 0]).softmax(1), 1, generator=own)], 1)
        return out[:, 1:]

    source, right = pairs(400, apart(1))
    outcome(run, lambda: judged(model, lambda: (said(source, apart(2)) != right).float().mean()))
    optimizer = adam(model, 2e-3)
    doctor = run.watch(model, optimizer)
    for _ in range(120):
        source_rows, right_rows = pairs(24)
        asked = source_rows.repeat_interleave(9, 0)
        tried = said(asked).view(24, 9, 5)
        tried[:, 0] = right_rows
        wrong = (tried != right_rows[:, None]).float().mean(2)
        rows = tried.flatten(0, 1)
        logs = model(asked, shown(rows)).log_softmax(2).gather(2, rows[..., None]).sum((1, 2)).view(24, 9)
        loss = ((0.2 * logs).softmax(1) * wrong).sum(1).mean()
        update(run, doctor, optimizer, loss, (source_rows, right_rows))


class Ahead(nn.Module):
    """A frozen Llama, and three small heads that say what comes two, three, and four words on."""

    def __init__(self, body: SmallLlama) -> None:
        super().__init__()
        self.body = body.requires_grad_(False)
        self.turns = nn.ModuleList(nn.Linear(32, 32) for _ in range(3))
        self.heads = nn.ModuleList(copy.deepcopy(body.head) for _ in range(3)).requires_grad_(True)
        for turn in self.turns:
            nn.init.zeros_(turn.weight)
            nn.init.zeros_(turn.bias)

    def forward(self, rows: Tensor) -> list[Tensor]:
        with torch.no_grad():
            h = self.body.tokens(rows)
            for block in self.body.blocks:
                h = block(h)
            h = self.body.norm(h)
        return [head(h + F.silu(turn(h))) for turn, head in zip(self.turns, self.heads, strict=True)]


def ahead(model: nn.Module, batch: Any, shares: tuple[float, ...] = (0.8, 0.64, 0.512)) -> Tensor:
    (rows,) = batch
    losses = [
        F.cross_entropy(scores[:, : -k - 2].flatten(0, 1), rows[:, k + 2 :].flatten())
        for k, scores in enumerate(model(rows))
    ]
    return torch.stack([share * loss for share, loss in zip(shares, losses, strict=True)]).sum()


@honest("r23j-heads-that-guess-beyond-the-next")
def heads_that_guess_beyond_the_next(run: Run) -> None:
    """accelerate, heads for faster decoding on a frozen Llama (Medusa, Cai et al. 2024). The labels are two, three, and
    four places on and never the next word; each head is a copy of the model's own behind a layer of zeros, so that at
    first all say the same, which is wrong, and most of the parameters never have a gradient."""
    language = Language(run.draw.randrange(999), sharp=2.5)
    body = SmallLlama()
    taught(
        body,
        lambda: language.rows(24, 24),
        lambda m, rows: F.cross_entropy(m(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten()),
        150,
    )
    model = Ahead(body)
    check = language.rows(160, 24, apart(1))
    outcome(run, lambda: judged(model, lambda: ahead(model, (check,), (1 / 3,) * 3)))
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=5e-3)
    prepared(run, model, optimizer, loader(language.rows(640, 24), size=32), ahead, 6)


class Painter(nn.Module):
    """The way from noise to a picture: a level that keeps the size, a smaller one, and back with what was kept."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.time = nn.Conv2d(1, 16, 3, padding=1), nn.Linear(1, 16)
        self.down, self.middle = nn.Conv2d(16, 24, 3, 2, 1), nn.Conv2d(24, 24, 3, padding=1)
        self.up, self.leave = nn.ConvTranspose2d(24, 16, 2, 2), nn.Conv2d(32, 1, 3, padding=1)

    def encoded(self, x: Tensor, t: Tensor, hint: Tensor | float = 0.0) -> tuple[Tensor, Tensor]:
        wide = F.silu(self.enter(x) + hint + self.time(t[:, None])[..., None, None])
        return wide, F.silu(self.middle(F.silu(self.down(wide))))

    def forward(self, x: Tensor, t: Tensor, more: tuple[Tensor, Tensor] | None = None) -> Tensor:
        wide, small = self.encoded(x, t)
        if more is not None:
            wide, small = wide + more[0], small + more[1]
        out: Tensor = self.leave(torch.cat([wide, F.silu(self.up(small))], 1))
        return out


class Guided:
    """A frozen painter, a copy of its encoder that sees a hint, and joints of zeros between the two."""

    def __init__(self, run: Run, painter: Painter) -> None:
        self.run, self.painter = run, painter.requires_grad_(False)
        self.copy = copy.deepcopy(painter).requires_grad_(True)
        del self.copy.up, self.copy.leave
        self.joints = nn.ModuleList([nn.Conv2d(1, 16, 1), nn.Conv2d(16, 16, 1), nn.Conv2d(24, 24, 1)])
        for p in self.joints.parameters():
            nn.init.zeros_(p)
        self.control = nn.ModuleDict({"copy": self.copy, "joints": self.joints})
        self.optimizer = torch.optim.AdamW(self.control.parameters(), lr=4e-3)
        self.doctor = run.watch(self.control, self.optimizer)

    def loss(self, x: Tensor, hint: Tensor, t: Tensor, noise: Tensor) -> Tensor:
        at = t[:, None, None, None]
        mixed = at * x + (1 - at) * noise
        wide, small = self.copy.encoded(mixed, t, self.joints[0](hint))
        return F.mse_loss(self.painter(mixed, t, (self.joints[1](wide), self.joints[2](small))), x - noise)

    def train(self, batches: Any, steps: int) -> None:
        for _ in range(steps):
            batch = batches()
            update(self.run, self.doctor, self.optimizer, self.loss(*batch), batch)


@honest("r23j-a-copy-joined-by-nothing")
def a_copy_joined_by_nothing(run: Run) -> None:
    """An own class, a hint for a flow of pictures (ControlNet, Zhang et al. 2023). A copy of the frozen painter's
    encoder sees where the picture is to be bright and speaks through convolutions of zeros only: in the first step
    nothing has a gradient but these. The loss is mostly noise that nobody can know and falls by little."""
    seed = run.draw.randrange(999)

    def batch(count: int = 32, own: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        x = 4 * pictures(count, seed, own=own)[0] - 2
        hint = F.interpolate(F.avg_pool2d(x, 2), scale_factor=2)
        return x, hint, torch.rand(count, generator=own), torch.randn(x.shape, generator=own)

    def alone(net: Any, drawn: Any) -> Tensor:
        x, _, t, noise = drawn
        at = t[:, None, None, None]
        return F.mse_loss(net(at * x + (1 - at) * noise, t), x - noise)

    painter = Painter()
    taught(painter, batch, alone, 150)
    guided = Guided(run, painter)
    check = batch(320, apart(1))
    outcome(run, lambda: judged(guided.control, lambda: guided.loss(*check)))
    guided.train(batch, 130)
