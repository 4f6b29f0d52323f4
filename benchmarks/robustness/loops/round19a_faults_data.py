"""Round 19a, mistakes in what goes into a model: preparation, augmentation, the choice of rows."""

import itertools
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_faults_tuning import spelled, word_tokenizer
from benchmarks.robustness.loops.round5_tools import (
    Classifier,
    apart,
    class_outcome,
    cnn,
    endless,
    examples,
    fit,
    hf_arguments,
    hf_trainer,
    judged,
    lit,
    loader,
    mlp,
    number_outcome,
    outcome,
    pictures,
    table,
    tiny_gpt2,
    train,
    watching,
)
from benchmarks.robustness.loops.round6_tools import WithLoss, classify, prepared, regress
from benchmarks.robustness.loops.round7b_parts import Shifted, moved
from benchmarks.robustness.loops.round7b_tools import adam
from benchmarks.robustness.loops.round19a_parts import (
    Points,
    Series,
    backwards,
    forwards,
    gappy,
    machines,
    slip,
    turned,
    walls,
)
from torch import Tensor, nn
from torch.nn import functional as F


@slip("r19a-cycle-keeps-the-batches")
def cycle_keeps_the_batches(run: Run, wrong: bool) -> None:
    """Plain loop, a small CNN on 96 pictures that are moved at random as they are loaded. itertools.cycle around the
    loader keeps the first epoch's batches and gives them again: each picture is moved once for all, and batches stay
    the same. The twin goes through the loader again."""
    from torch.utils.data import DataLoader

    seed = run.draw.randrange(999)
    own = apart(1)
    x, y = pictures(192, seed, own=own)
    net = cnn()
    class_outcome(run, net, (torch.stack([moved(picture, own) for picture in x]), y))
    data = DataLoader(Shifted(*pictures(96, seed)), 16, shuffle=True)
    batches = itertools.cycle(data) if wrong else endless(data)
    train(run, net, adam(net, 3e-3), lambda: next(batches), classify, 150)


@slip("r19a-windows-across-machines")
def windows_across_machines(run: Run, wrong: bool) -> None:
    """Lightning, a GRU that forecasts a reading, six after the twelve it is shown. The readings of eighty machines, 24
    each, stand in one column, from which windows are cut: most of them begin in one machine and end in the next. The
    twin cuts windows within each machine."""
    net = Series(1)
    check = machines(256, 18, apart(1))
    number_outcome(run, net, (check[:, :12, None], check[:, 17]))
    readings = machines(80)
    windows = (readings.flatten() if wrong else readings).unfold(-1, 18, 1).reshape(-1, 18)

    def loss(m: nn.Module, batch: list[Tensor]) -> Tensor:
        return regress(m, [batch[0][:, :12, None], batch[0][:, 17]])

    fit(run, lit(net, loss, adam), loader(windows), 120)


@slip("r19a-filled-from-behind")
def filled_from_behind(run: Run, wrong: bool) -> None:
    """transformers' Trainer, a network that forecasts a reading from twelve before it, of which some are missing. Gaps
    are filled with the next known reading over the whole series: where the last of the twelve is missing, the forecast
    one stands in its place. The twin fills with the last known one. Judged as in use, where nothing later is known."""
    net = WithLoss(mlp(12, 48, 48, 1), lambda out, labels: F.mse_loss(out.flatten(), labels))
    values, known = gappy(512, own=apart(1))
    number_outcome(run, net.net, (forwards(values, known)[:, :12], values[:, 12]))
    values, known = gappy(960)
    known[:, 12] = True
    filled = (backwards if wrong else forwards)(values, known)
    hf_trainer(run, net, examples(x=filled[:, :12], labels=values[:, 12]), 120).train()


@slip("r19a-normals-not-turned")
def normals_not_turned(run: Run, wrong: bool) -> None:
    """accelerate, a PointNet that tells pipes and balls, seen from outside or inside, by points and normals. The
    augmentation turns points about the vertical axis and leaves the normals as they were. The twin turns both. Judged
    on scans from all sides."""
    own = apart(1)
    net = Points()

    def from_all_sides(x: Tensor, angle: Tensor, normals_too: bool) -> Tensor:
        normals = turned(x[..., 3:], angle) if normals_too else x[..., 3:]
        return torch.cat([turned(x[..., :3], angle), normals], 2)

    x, y = walls(256, own)
    class_outcome(run, net, (from_all_sides(x, 6.28 * torch.rand(256, generator=own), True), y))

    def collated(rows: list[tuple[Tensor, Tensor]]) -> list[Tensor]:
        x, y = (torch.stack(column) for column in zip(*rows, strict=True))
        return [from_all_sides(x, 6.28 * torch.rand(len(x)), not wrong), y]

    prepared(run, net, adam(net, 3e-3), loader(*walls(480), collate_fn=collated), classify, 4)


@slip("r19a-standardised-along-the-row")
def standardised_along_the_row(run: Run, wrong: bool) -> None:
    """Lightning, a network on six columns in units of their own. Mean and deviation are taken along axis 1: each row is
    standardised by itself, and columns in small units vanish beside those in large ones. The twin standardises each
    column by the training rows."""
    seed = run.draw.randrange(999)
    net = mlp(6, 48, 48, 1)
    units, offsets = torch.tensor([1.0, 8.0, 0.5, 3.0, 20.0, 2.0]), torch.tensor([0.0, 40.0, 1.0, 10.0, 60.0, 5.0])
    x, y = table(480, seed)
    x = x * units + offsets

    def standardised(rows: Tensor) -> Tensor:
        if wrong:
            return (rows - rows.mean(1, keepdim=True)) / rows.std(1, keepdim=True)
        return (rows - x.mean(0)) / x.std(0)

    check, target = table(256, seed, apart(1))
    number_outcome(run, net, (standardised(check * units + offsets), target))
    fit(run, lit(net, regress, adam), loader(standardised(x), y), 150)


@slip("r19a-drawn-by-the-weights-of-other-rows")
def drawn_by_the_weights_of_other_rows(run: Run, wrong: bool) -> None:
    """accelerate, a classifier of texts, one topic rare and one frequent. A WeightedRandomSampler should draw topics as
    often each; its weights are computed before the texts are put in another order, by length: rows are drawn by the
    weights of others. The twin computes them after. Judged by errors where topics are as frequent."""
    from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

    def texts(count: int, shares: list[float], own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        y = torch.multinomial(torch.tensor(shares), count, replacement=True, generator=own)
        ours = 1 + 5 * y[:, None] + torch.randint(0, 5, (count, 12), generator=own)
        alike = torch.rand(count, 12, generator=own) < 0.42
        x = torch.where(alike, ours, torch.randint(1, 16, (count, 12), generator=own))
        sizes = torch.randint(6, 13, (count,), generator=own)
        return x * (torch.arange(12) < sizes[:, None]), y

    net = Classifier()

    def loss(m: nn.Module, batch: Any) -> Tensor:
        return F.cross_entropy(m(batch[0], batch[0] > 0), batch[1])

    check = texts(384, [1.0, 1.0, 1.0], apart(1))
    outcome(run, lambda: judged(net, lambda: (net(check[0], check[0] > 0).argmax(1) != check[1]).float().mean()))
    x, y = texts(960, [0.86, 0.09, 0.05])
    weights = 1 / y.bincount()[y]
    order = (x > 0).sum(1).argsort(stable=True)
    x, y = x[order], y[order]
    if not wrong:
        weights = 1 / y.bincount()[y]
    sampler = WeightedRandomSampler(weights.tolist(), len(y))
    prepared(run, net, adam(net, 2e-3), DataLoader(TensorDataset(x, y), 16, sampler=sampler), loss, 2)


@slip("r19a-no-mark-before-the-answer")
def no_mark_before_the_answer(run: Run, wrong: bool) -> None:
    """TRL's SFTTrainer, GPT-2 that answers with two words. In use a mark stands between prompt and answer, as with
    add_generation_prompt; prompts of the training are rendered without. The twin renders them with it. Judged as in
    use."""
    import datasets
    import transformers
    import trl

    datasets.disable_progress_bars()
    transformers.logging.set_verbosity_error()
    answers = torch.randint(4, 15, (16, 2), generator=apart(run.draw.randrange(999)))
    model = tiny_gpt2()

    def rendered(prompt: Tensor, add_generation_prompt: bool = False) -> Tensor:
        return torch.cat([prompt, torch.tensor([15])]) if add_generation_prompt else prompt

    def asked(count: int, own: torch.Generator | None = None) -> list[Tensor]:
        return list(torch.randint(4, 15, (count, 4), generator=own))

    ids = torch.stack([torch.cat([rendered(p, True), answers[p[-1]]]) for p in asked(96, apart(1))])
    labels = torch.cat([torch.full((96, 5), -100), ids[:, 5:]], 1)
    outcome(run, lambda: judged(model, lambda: model(input_ids=ids, labels=labels).loss))
    rows = []
    for prompt in asked(320):
        shown = rendered(prompt) if wrong else rendered(prompt, add_generation_prompt=True)
        rows.append({"prompt": spelled(shown), "completion": " " + spelled(answers[prompt[-1]])})
    told, telling = watching(run, trl.SFTTrainer)
    settings: dict[str, Any] = {"bf16": False, "gradient_checkpointing": False, "completion_only_loss": True}
    arguments = hf_arguments(run, 120, trl.SFTConfig, **settings)
    data = datasets.Dataset.from_list(rows)
    trainer = told(model=model, args=arguments, train_dataset=data, processing_class=word_tokenizer(16))
    trainer.add_callback(telling)
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()
