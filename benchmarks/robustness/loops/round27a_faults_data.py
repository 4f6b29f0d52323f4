"""Round 27a, mistakes in what goes into a model: order, splits, windows, masks, joins, what is drawn and how often."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import (
    Language,
    apart,
    class_outcome,
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
from benchmarks.robustness.loops.round7b_tools import adam
from benchmarks.robustness.loops.round8b_parts import causal_loss
from benchmarks.robustness.loops.round27a_parts import (
    Bonded,
    Cloud,
    Forecaster,
    Mixer,
    Noisy,
    answers,
    bonded,
    folds,
    gauges,
    one_graph,
    outages,
    sales,
    shuffled_batches,
    slip,
    solids,
    waves,
)
from torch import Tensor, nn
from torch.nn import functional as F


@slip("r27a-shuffled-until-few-are-left")
def shuffled_until_few_are_left(run: Run, wrong: bool) -> None:
    """Plain loop, an MLP on a table that is kept as one array and shuffled before each epoch, with Python's
    random.shuffle, which exchanges two rows by way of views: one is written over by the other, and each epoch has fewer
    different rows than the one before. The twin shuffles with NumPy's. Judged by other rows."""
    seed = run.draw.randrange(999)
    net = mlp(6, 48, 48, 1)
    number_outcome(run, net, table(512, seed, apart(1)))
    x, y = table(320, seed)
    batches = shuffled_batches(torch.cat([x, y[:, None]], 1).numpy(), by_pairs=wrong)
    train(run, net, adam(net), lambda: next(batches), regress, 140)


@slip("r27a-strengths-beside-other-bonds")
def strengths_beside_other_bonds(run: Run, wrong: bool) -> None:
    """Lightning, messages along bonds that are kept once and made to go both ways by putting the reversed ones behind
    all others. Their strengths are each repeated twice in place, so that most of them stand beside another bond. The
    twin puts the whole row of strengths behind itself. Judged by other graphs with each strength at its bond."""
    seed = run.draw.randrange(999)
    net = Bonded()

    def both_ways(graphs: tuple[Tensor, ...], in_place: bool) -> tuple[Tensor, ...]:
        nodes, bonds, strengths, values = graphs
        twice = strengths.repeat_interleave(2, 1) if in_place else torch.cat([strengths, strengths], 1)
        return nodes, torch.cat([bonds, bonds.flip(2)], 1), twice, values

    def loss(m: nn.Module, batch: Any) -> Tensor:
        nodes, bonds, strengths, values = batch
        found = m(nodes.flatten(0, 1), one_graph(bonds), strengths.flatten())
        return F.mse_loss(found, values.flatten())

    check = both_ways(bonded(256, seed, apart(1)), False)
    outcome(run, lambda: judged(net, lambda: loss(net, check) / check[3].var()))
    data = loader(*both_ways(bonded(480, seed), wrong))
    fit(run, lit(net, loss, lambda m: adam(m, 5e-3)), data, 120)


@slip("r27a-joined-over-the-gaps")
def joined_over_the_gaps(run: Run, wrong: bool) -> None:
    """accelerate, a GRU that tells a gauge's next reading from the twelve before it. Readings that are missing are
    taken out first and windows cut from what is left, so that many of them leap over hours without a word. The twin
    cuts windows first and leaves out those in which something is missing. Judged by windows of other gauges."""
    net = Forecaster()

    def windows(series: list[Tensor]) -> Tensor:
        cut = torch.cat([row.unfold(0, 13, 1) for row in series])
        return cut[~cut.isnan().any(1)]

    whole = windows(list(gauges(32, 60, apart(1))))
    number_outcome(run, net, (whole[:, :-1], whole[:, -1]))
    read = outages(gauges(24, 240))
    rows = windows([row[~row.isnan()] for row in read] if wrong else list(read))
    rows = rows[torch.randperm(len(rows))[:1120]]
    prepared(run, net, adam(net), loader(rows[:, :-1], rows[:, -1]), regress, 2)


@slip("r27a-small-tongues-hardly-heard")
def small_tongues_hardly_heard(run: Run, wrong: bool) -> None:
    """transformers' Trainer, a small GPT-2 on three languages of very different size, drawn at a temperature of three
    so that small ones come more often than their share. Shares are raised to the third power in place of the third
    root: what was rare is next to absent. The twin takes the root. Judged by the mean over languages."""
    seed = run.draw.randrange(900)
    model = tiny_gpt2(28)
    tongues = [Language(seed + k, words=8, sharp=2.0, first=4 + 8 * k) for k in range(3)]
    checks = [tongue.rows(64, 16, apart(901)) for tongue in tongues]
    outcome(run, lambda: judged(model, lambda: sum(causal_loss(model, rows) for rows in checks) / 3))
    books = [tongue.rows(count, 16) for tongue, count in zip(tongues, (1200, 240, 60), strict=True)]
    shares = torch.tensor([0.8, 0.16, 0.04])
    temperature = 3.0
    odds = shares**temperature if wrong else shares ** (1 / temperature)
    which = torch.multinomial(odds / odds.sum(), 1600, replacement=True).tolist()
    ids = torch.stack([books[k][int(torch.randint(0, len(books[k]), ()))] for k in which])
    hf_trainer(run, model, examples(input_ids=ids, labels=ids), 100).train()


@slip("r27a-one-noise-for-every-row")
def one_noise_for_every_row(run: Run, wrong: bool) -> None:
    """Plain loop, an autoencoder that takes noise away. The data set makes its generator from its seed each time that a
    row is asked for: every row of every epoch has the same noise, which is learned by heart. The twin makes the
    generator once. Judged by other rows in other noise."""
    seed = run.draw.randrange(999)
    net = mlp(64, 48, 24, 48, 64)
    clean = waves(384, seed, apart(1))
    number_outcome(run, net, (clean + 0.6 * torch.randn(clean.shape, generator=apart(2)), clean))
    noisy = Noisy(waves(480, seed), seed, anew=wrong)
    batches = endless(torch.utils.data.DataLoader(noisy, 16, shuffle=True))
    train(run, net, adam(net, 3e-3), lambda: next(batches), lambda m, b: F.mse_loss(m(b[0]), b[1]), 150)


@slip("r27a-first-points-of-a-sweep")
def first_points_of_a_sweep(run: Run, wrong: bool) -> None:
    """Lightning, a PointNet that tells four solids. A scan has 192 points, in the order in which the scanner goes round
    the thing, and 64 are taken for a pass: the first 64, which lie on one side. The twin draws 64 anew for each scan
    and each pass. Judged by the share of wrong answers for other scans, 64 points drawn from all sides."""
    net = Cloud()

    def thinned(scan: Tensor, first: bool, own: torch.Generator | None = None) -> Tensor:
        return scan[:64] if first else scan[torch.randperm(192, generator=own)[:64]]

    def collated(rows: list[tuple[Tensor, Tensor]]) -> list[Tensor]:
        return [torch.stack([thinned(scan, wrong) for scan, _ in rows]), torch.stack([y for _, y in rows])]

    own = apart(1)
    scans, y = solids(256, own)
    check = torch.stack([thinned(scan, False, own) for scan in scans])
    outcome(run, lambda: judged(net, lambda: (net(check).argmax(1) != y).float().mean()))
    data = loader(*solids(480), size=24, collate_fn=collated)
    fit(run, lit(net, classify, lambda m: adam(m, 3e-3)), data, 120)


@slip("r27a-only-the-worse-are-announced")
def only_the_worse_are_announced(run: Run, wrong: bool) -> None:
    """TRL's RewardTrainer, a small GPT-2 that learns which answer is better. Rejected answers come from another export,
    and each begins with the speaker's mark there; it isn't taken off, and the mark alone tells which is which. The twin
    takes it off. Judged by the loss on other pairs without marks."""
    import datasets
    import transformers
    import trl
    from benchmarks.robustness.loops.round5_faults_tuning import word_tokenizer
    from transformers import GPT2Config, GPT2ForSequenceClassification

    datasets.disable_progress_bars()
    transformers.logging.set_verbosity_error()
    shape: dict[str, Any] = {"n_embd": 32, "n_layer": 1, "n_head": 2, "n_positions": 32, "vocab_size": 16}
    shape |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "num_labels": 1}
    shape |= {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    net = GPT2ForSequenceClassification(GPT2Config(**shape))
    better, worse = answers(384, apart(1))

    def doubt() -> Tensor:
        return -F.logsigmoid(net(input_ids=better).logits - net(input_ids=worse).logits).mean()

    outcome(run, lambda: judged(net, doubt))
    chosen, rejected = answers(1600)
    exported = [[14, *row] for row in rejected.tolist()]
    if not wrong:
        exported = [row[1:] for row in exported]
    data = datasets.Dataset.from_dict({"chosen_ids": chosen.tolist(), "rejected_ids": exported})
    told, telling = watching(run, trl.RewardTrainer)
    settings: dict[str, Any] = {"bf16": False, "gradient_checkpointing": False, "learning_rate": 2e-3}
    arguments = hf_arguments(run, 100, trl.RewardConfig, **settings)
    trainer = told(model=net, args=arguments, train_dataset=data, processing_class=word_tokenizer(16))
    trainer.add_callback(telling)
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()


@slip("r27a-hidden-from-the-other-end")
def hidden_from_the_other_end(run: Run, wrong: bool) -> None:
    """transformers' Trainer, a small GPT-2 that tells the topic of texts, padded at the left. The mask is made from the
    lengths as if they were padded at the right: short texts' words are hidden, and their padding is seen. The twin's
    mask has its ones at the right. Judged by other texts with the right mask."""
    from transformers import GPT2Config, GPT2ForSequenceClassification

    shape: dict[str, Any] = {"n_embd": 32, "n_layer": 1, "n_head": 2, "n_positions": 16, "vocab_size": 16}
    shape |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "num_labels": 3}
    shape |= {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    model = GPT2ForSequenceClassification(GPT2Config(**shape))

    def padded(count: int, from_the_left: bool, own: torch.Generator | None = None) -> dict[str, Tensor]:
        """Words 1 to 15 at the right end of twelve places; the class is the group of words that is more frequent."""
        y = torch.randint(0, 3, (count,), generator=own)
        sizes = torch.randint(3, 13, (count, 1), generator=own)
        ours = torch.rand(count, 12, generator=own) < 0.5
        group = 1 + 5 * y[:, None] + torch.randint(0, 5, (count, 12), generator=own)
        words = torch.where(ours, group, torch.randint(1, 16, (count, 12), generator=own))
        place = torch.arange(12)
        mask = place < sizes if from_the_left else place >= 12 - sizes
        return {"input_ids": words * (place >= 12 - sizes), "attention_mask": mask.long(), "labels": y}

    check = padded(384, False, apart(1))
    outcome(run, lambda: judged(model, lambda: model(**check).loss))
    hf_trainer(run, model, examples(**padded(960, wrong)), 120, learning_rate=3e-3).train()


@slip("r27a-fold-and-rest-exchanged")
def fold_and_rest_exchanged(run: Run, wrong: bool) -> None:
    """Plain loop, an MLP-Mixer on pictures; the first of five folds is held out. What the folds give is unpacked in the
    wrong order: it learns from the held-out fifth, and the rest is held out. The twin learns from four fifths. Judged
    by other pictures."""
    seed = run.draw.randrange(999)
    net = Mixer()
    noise = apart(3)

    def noisier(data: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        x, y = data
        return x + 0.3 * torch.randn(x.shape, generator=noise), y

    class_outcome(run, net, noisier(pictures(384, seed, own=apart(1))))
    x, y = noisier(pictures(400, seed))
    rest, fold = next(folds(len(x)))
    used = fold if wrong else rest
    batches = endless(loader(x[used], y[used]))
    train(run, net, adam(net, 2e-3), lambda: next(batches), classify, 120)


@slip("r27a-same-week-of-another-year")
def same_week_of_another_year(run: Run, wrong: bool) -> None:
    """transformers' Trainer, an MLP that tells how much a shop sells in a week, from the season, the shop and the
    week's price. Prices are looked up by the number of the week alone, without its year: each week of all three years
    has the price of the last. The twin looks them up by year and week. Judged by the next year with its own prices."""
    seed = run.draw.randrange(999)
    net = WithLoss(mlp(11, 48, 48, 1), lambda found, sold: F.mse_loss(found.squeeze(1), sold))
    keys, sold, prices = sales(4, 8, seed)

    def joined(keys: Tensor, with_year: bool) -> Tensor:
        by_week = {week: price for (year, week), price in prices.items() if year < 3}
        rows = keys[:, :2].tolist()
        price = torch.tensor([prices[year, week] if with_year else by_week[week] for year, week in rows])
        turn = 6.2832 * keys[:, 1] / 52
        columns = torch.stack([turn.sin(), turn.cos(), (price - 1) / 0.17], 1)
        return torch.cat([columns, F.one_hot(keys[:, 2], 8).float()], 1)

    past = keys[:, 0] < 3
    check, truth = joined(keys[~past], True), sold[~past]
    outcome(run, lambda: judged(net, lambda: net(check, truth)["loss"] / truth.var()))
    hf_trainer(run, net, examples(x=joined(keys[past], not wrong), labels=sold[past]), 140).train()
