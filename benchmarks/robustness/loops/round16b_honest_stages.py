"""Round 16b, honest and odd: models that are cut, swapped or rounded in the middle of their lives."""

import copy
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import (
    Language,
    apart,
    class_outcome,
    cnn,
    examples,
    fit,
    hf_trainer,
    judged,
    lit,
    loader,
    mlp,
    outcome,
    pictures,
    table,
    tiny_gpt2,
)
from benchmarks.robustness.loops.round6_tools import classify, prepared, regress
from benchmarks.robustness.loops.round7b_tools import taught, update
from torch import Tensor, nn
from torch.nn import functional as F


def own_loss(model: Any, rows: Tensor) -> Tensor:
    """What a model of transformers says of rows of tokens."""
    out: Tensor = model(input_ids=rows, labels=rows).loss
    return out


class Shifted(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x - 1).relu()


@honest("r16b-another-activation-late-in-life")
def another_activation_late_in_life(run: Run) -> None:
    """transformers' Trainer, a GPT-2 made sparse as in "ReLU strikes back" (Mirzadeh et al. 2024). In a trained model
    each GELU is replaced by a ReLU shifted by one, which no weight was made for: the loss begins far above where
    the model was, nearly all hidden units put out zero and have no gradient, and a short training heals it."""
    language = Language(run.draw.randrange(999), first=4)
    model = tiny_gpt2(n_layer=2)
    taught(model, lambda: language.rows(16, 20), own_loss, 110)
    for block in model.transformer.h:
        block.mlp.act = Shifted()
    check, rows = language.rows(96, 20, apart(1)), language.rows(480, 20)
    outcome(run, lambda: judged(model, lambda: own_loss(model, check)))
    hf_trainer(run, model, examples(input_ids=rows, labels=rows), 60, learning_rate=4e-3).train()


@honest("r16b-one-step-for-all-there-is")
def one_step_for_all_there_is(run: Run) -> None:
    """transformers' Trainer, a GPT-2 without any chance in its gradient (Geiping et al. 2022). All 96 texts that there
    are make one step, in twelve micro-batches: an epoch is a single update, each update has the same rows as the
    last one, their order is of no meaning, and the rate is many times that of small batches."""
    language = Language(run.draw.randrange(999), first=4)
    model = tiny_gpt2()
    check, rows = language.rows(96, 24, apart(1)), language.rows(96, 24)
    outcome(run, lambda: judged(model, lambda: own_loss(model, check)))
    settings: dict[str, Any] = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 12}
    hf_trainer(run, model, examples(input_ids=rows, labels=rows), 40, learning_rate=1.5e-2, **settings).train()


@honest("r16b-every-other-layer-of-the-teacher")
def every_other_layer_of_the_teacher(run: Run) -> None:
    """accelerate, a GPT-2 of two layers from one of four, as DistilGPT-2 was made (Sanh et al. 2019). The pupil begins
    with the teacher's first and third layer, its words and its head, and has three losses: the next words, twice, the
    teacher's softened answers, four times, and that the last states point the same way, so that the sum never comes
    near zero."""
    language = Language(run.draw.randrange(999))
    teacher, pupil = tiny_gpt2(12, n_layer=4), tiny_gpt2(12, n_layer=2)
    taught(teacher, lambda: language.rows(16, 20), own_loss, 120)
    teacher.eval().requires_grad_(False)
    inner, outer = pupil.transformer, teacher.transformer
    for part in ("wte", "wpe", "ln_f"):
        getattr(inner, part).load_state_dict(getattr(outer, part).state_dict())
    for mine, its in zip(inner.h, list(outer.h)[::2], strict=True):
        mine.load_state_dict(its.state_dict())

    def three(model: Any, batch: Any) -> Tensor:
        rows = batch[0]
        out = model(input_ids=rows, labels=rows, output_hidden_states=True)
        said = teacher(input_ids=rows, output_hidden_states=True)
        mine, its = ((o.logits / 2).log_softmax(-1) for o in (out, said))
        soft = F.kl_div(mine, its, reduction="none", log_target=True).sum(-1).mean()
        turned = 1 - F.cosine_similarity(out.hidden_states[-1], said.hidden_states[-1], dim=-1).mean()
        total: Tensor = 2 * out.loss + 4 * soft + turned
        return total

    check = language.rows(96, 20, apart(1))
    outcome(run, lambda: judged(pupil, lambda: own_loss(pupil, check)))
    prepared(run, pupil, torch.optim.AdamW(pupil.parameters(), lr=3e-3), loader(language.rows(480, 20)), three, 3)


@honest("r16b-never-in-training-mode")
def never_in_training_mode(run: Run) -> None:
    """accelerate, a CNN goes over to other pictures two at a time, as detectors are tuned with frozen batch norms. The
    model is in evaluation mode from the first step to the last, since two pictures have no mean worth having and
    those of the earlier training are right; dropout is off as well, and the norms' gains learn all the same."""
    seed = run.draw.randrange(999)
    model = cnn(drop=0.2)
    taught(model, lambda: pictures(24, seed), classify, 80)
    class_outcome(run, model, pictures(256, seed + 1, own=apart(1)))
    model.eval()
    prepared(
        run, model, torch.optim.SGD(model.parameters(), lr=0.02), loader(*pictures(320, seed + 1), size=2), classify, 2
    )


class Rounded(nn.Module):
    """A trained net in three bits: weights rounded down, and for each a number from zero to one, which learns."""

    def __init__(self, trained: nn.Sequential) -> None:
        super().__init__()
        self.trained, self.hard = copy.deepcopy(trained).requires_grad_(False), False
        self.scales, self.ups = [], nn.ParameterList()
        for layer in trained:
            if isinstance(layer, nn.Linear):
                scale = layer.weight.detach().abs().amax() / 3
                part = (layer.weight.detach() / scale) % 1
                self.scales.append(scale)
                self.ups.append(nn.Parameter(((part + 0.1) / 1.2).logit()))

    def shares(self) -> list[Tensor]:
        soft = [(up.sigmoid() * 1.2 - 0.1).clamp(0, 1) for up in self.ups]
        return [s.round() for s in soft] if self.hard else soft

    def forward(self, x: Tensor) -> Tensor:
        rest = list(zip(self.scales, self.shares(), strict=True))
        for layer in self.trained:
            if isinstance(layer, nn.Linear):
                scale, share = rest.pop(0)
                x = F.linear(x, scale * ((layer.weight / scale).floor() + share).clamp(-4, 3), layer.bias)
            else:
                x = layer(x)
        return x


@honest("r16b-only-up-or-down-is-learned")
def only_up_or_down_is_learned(run: Run) -> None:
    """Plain loop, a trained net goes to three bits after training by AdaRound (Nagel et al. 2020), from 512 rows
    without labels. What learns is whether each weight is rounded up or down; the loss begins at nothing, because
    all are in between and the net is as it was, and rises, because more and more weight is on being at one of the
    two ends."""
    seed = run.draw.randrange(999)
    trained = mlp(6, 24, 24, 1)
    taught(trained, lambda: table(48, seed), regress, 250)
    trained.requires_grad_(False)
    model, rows, check = Rounded(trained), table(512, seed)[0], table(512, seed, apart(1))[0]

    def rounded() -> float:
        model.hard = True
        value = judged(model, lambda: F.mse_loss(model(check), trained(check)))
        model.hard = False
        return value

    outcome(run, rounded)
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-2)
    doctor = run.watch(model, optimizer)
    for step in range(500):
        x = rows[torch.randint(0, 512, (64,))]
        power = 20 - 18 * step / 500
        ends = torch.cat([1 - (2 * s - 1).abs() ** power for s in (p.flatten() for p in model.shares())]).sum()
        loss = F.mse_loss(model(x), trained(x)) + 0.005 * ends * (step >= 80)
        update(run, doctor, optimizer, loss, x)


class Fair(nn.Module):
    """A network, and the price of treating two groups otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.price = mlp(6, 24, 1), nn.Parameter(torch.zeros(()))

    def gap(self, x: Tensor) -> Tensor:
        share, group = self.net(x).sigmoid()[:, 0], x[:, 0] > 0
        return (share[group].mean() - share[~group].mean()).abs()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.net(x)[:, 0]
        return out


@honest("r16b-one-number-climbs")
def one_number_climbs(run: Run) -> None:
    """Lightning, loans from a table under a constraint of fairness, by gradient descent and ascent (Cotter et al.
    2019). The Lagrange multiplier stands in the same optimizer with maximize=True: it goes up the loss while all
    other weights go down, so that the loss first falls, and then rises for as long as the two groups are treated
    too differently."""
    seed = run.draw.randrange(999)
    w = torch.randn(5, generator=apart(seed + 8))

    def loans(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        x = torch.randn(count, 6, generator=own)
        return x, ((x[:, 1:] @ (w / w.norm()) + x[:, 0].sign()) > 0).float()

    def loss(m: Any, batch: Any) -> Tensor:
        over = m.gap(batch[0]) - 0.1
        return F.binary_cross_entropy_with_logits(m(batch[0]), batch[1]) + F.softplus(m.price) * over

    def optimizers(m: Any) -> Any:
        return torch.optim.Adam(
            [{"params": m.net.parameters()}, {"params": [m.price], "maximize": True, "lr": 0.1}], lr=5e-3
        )

    model, (x, y) = Fair(), loans(512, apart(1))

    def judge() -> Tensor:
        return F.binary_cross_entropy_with_logits(model(x), y) + 2 * (model.gap(x) - 0.1).relu()

    outcome(run, lambda: judged(model, judge))
    fit(run, lit(model, loss, optimizers), loader(*loans(1280), size=64), 200)
