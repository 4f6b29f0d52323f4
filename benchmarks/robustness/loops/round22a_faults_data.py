"""Round 22a, mistakes in what goes into the model: joins, order, views, scales, numbers of nodes, first words."""

from typing import Any

import numpy as np
import pandas as pd
import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import (
    apart,
    class_outcome,
    endless,
    fit,
    hf_arguments,
    hf_trainer,
    judged,
    lit,
    loader,
    mlp,
    number_outcome,
    outcome,
    train,
    watching,
)
from benchmarks.robustness.loops.round6_tools import WithLoss, classify, prepared, regress
from benchmarks.robustness.loops.round7b_tools import adam
from benchmarks.robustness.loops.round10a_tools import recitals
from benchmarks.robustness.loops.round22a_parts import (
    Clouds,
    Level,
    Neighbours,
    Skimmer,
    Stream,
    changed,
    clouds,
    doses,
    listener,
    nearest_wrong,
    networks,
    notes,
    reports,
    shapes,
    slip,
)
from torch import Tensor, nn
from torch.nn import functional as F


@slip("r22a-half-the-time-at-twice-the-rate")
def half_the_time_at_twice_the_rate(run: Run, wrong: bool) -> None:
    """Plain loop, convolutions over recordings of four notes. Two recordings in five are an old recorder's, which takes
    128 samples where others take 64; they are cut to the first 64 and so hold half of the time, an octave lower. The
    twin takes the mean of each two samples. Judged on other recordings of both, as the twin has them."""
    net = listener(4)

    def at_one_rate(x: Tensor, old: Tensor, cut: bool) -> Tensor:
        slower = x[:, :64] if cut else x.unflatten(1, (64, 2)).mean(2)
        return torch.where(old[:, None], slower, x[:, :64])[:, None]

    x, y, old = notes(384, apart(1))
    class_outcome(run, net, (at_one_rate(x, old, False), y))
    x, y, old = notes(640)
    batches = endless(loader(at_one_rate(x, old, wrong), y))
    train(run, net, adam(net), lambda: next(batches), classify, 140)


@slip("r22a-joined-with-every-version")
def joined_with_every_version(run: Run, wrong: bool) -> None:
    """accelerate, a number told from an order and from who ordered. The table of customers keeps what they were before;
    the join by customer gives each order once for each version, with what was long over or not yet so. The twin keeps
    the version of the day. Judged on other orders, joined like the twin's."""
    net = mlp(6, 48, 48, 1)
    draw = np.random.default_rng(run.draw.randrange(999))
    w = draw.standard_normal(6)

    def tables(count: int) -> tuple[pd.DataFrame, pd.DataFrame]:
        who = np.repeat(np.arange(count // 3), draw.integers(1, 5, count // 3))
        first = np.concatenate([[True], who[1:] != who[:-1]])
        since = np.where(first, 0, draw.integers(1, 300, len(who)))
        customers = pd.DataFrame(draw.standard_normal((len(who), 3)), columns=["a", "b", "c"])
        orders = pd.DataFrame(draw.standard_normal((count, 3)), columns=["d", "e", "f"])
        return (
            orders.assign(order=np.arange(count), customer=draw.integers(0, count // 3, count)).assign(
                day=draw.integers(1, 300, count)
            ),
            customers.assign(customer=who, since=since),
        )

    def of_the_day(both: pd.DataFrame) -> pd.DataFrame:
        known = both[both["since"] <= both["day"]]
        return known.sort_values("since").drop_duplicates("order", keep="last").sort_values("order")

    def tensors(table: pd.DataFrame) -> tuple[Tensor, Tensor]:
        x = torch.tensor(table[["a", "b", "c", "d", "e", "f"]].to_numpy(), dtype=torch.float32)
        return x, torch.tensor(table["paid"].to_numpy(), dtype=torch.float32)

    def paid(count: int) -> tuple[pd.DataFrame, pd.DataFrame]:
        orders, customers = tables(count)
        x = of_the_day(orders.merge(customers, on="customer"))[["a", "b", "c", "d", "e", "f"]].to_numpy()
        y = x @ w + np.sin(2 * x[:, 0]) + x[:, 1] * x[:, 4] + 0.1 * draw.standard_normal(count)
        return orders.assign(paid=y), customers

    orders, customers = paid(384)
    number_outcome(run, net, tensors(of_the_day(orders.merge(customers, on="customer"))))
    orders, customers = paid(640)
    both = orders.merge(customers, on="customer")
    x, y = tensors(both if wrong else of_the_day(both))
    rows = torch.utils.data.RandomSampler(range(len(x)), num_samples=1920)
    prepared(run, net, adam(net), loader(x, y, shuffle=False, sampler=rows), regress, 1)


@slip("r22a-third-file-never-reached")
def third_file_never_reached(run: Run, wrong: bool) -> None:
    """transformers' Trainer, a GRU that tells topics, over three sources that are streamed. They are put one behind the
    other, and a stream is not shuffled: all steps are over before the third source begins. The twin takes a row of each
    in turn. Judged on other reports of all three."""
    net = WithLoss(Skimmer(101), F.cross_entropy)
    x, y = (torch.cat(part) for part in zip(*(reports(128, s, apart(s + 1)) for s in range(3)), strict=True))
    outcome(run, lambda: judged(net, lambda: net(x, y)["loss"]))
    files = []
    for source in range(3):
        rows, topics = reports(1000, source)
        files.append([{"x": row, "labels": topic} for row, topic in zip(rows, topics, strict=True)])
    if wrong:
        stream: Any = torch.utils.data.ChainDataset([Stream(file) for file in files])
    else:
        stream = Stream([row for rows in zip(*files, strict=True) for row in rows])
    hf_trainer(run, net, stream, 120, learning_rate=1e-2).train()


@slip("r22a-begun-twice")
def begun_twice(run: Run, wrong: bool) -> None:
    """TRL's SFTTrainer, a small GPT-2 that learns poems. The template of a text begins with <s>, and the tokenizer puts
    one before it as well: all texts begin twice, and each word stands one place too late. The twin's template has none.
    Judged by the cross-entropy of texts that begin once, as the tokenizer gives them where the model is used."""
    import datasets
    import transformers
    import trl
    from benchmarks.robustness.loops.round5_faults_tuning import word_tokenizer
    from tokenizers.processors import TemplateProcessing
    from transformers import GPT2Config, GPT2LMHeadModel

    datasets.disable_progress_bars()
    transformers.logging.set_verbosity_error()
    seed = run.draw.randrange(999)
    words = word_tokenizer(16)
    words.backend_tokenizer.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    shape: dict[str, Any] = {"n_embd": 48, "n_layer": 2, "n_head": 4, "n_positions": 32, "vocab_size": 16}
    shape |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    shape |= {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    net = GPT2LMHeadModel(GPT2Config(**shape))

    def poems(count: int, own: torch.Generator) -> list[str]:
        sizes = torch.randint(8, 15, (count,), generator=own).tolist()
        return [" ".join(f"w{word}" for word in row) for row in recitals(seed, sizes, own)]

    def spoiled(texts: list[str], own: torch.Generator) -> list[str]:
        """One word in ten is another one."""
        out = []
        for text in texts:
            row = text.split()
            for t in torch.nonzero(torch.rand(len(row), generator=own) < 0.1).flatten().tolist():
                row[t] = f"w{int(torch.randint(4, 16, (1,), generator=own))}"
            out.append(" ".join(row))
        return out

    check = words([text + " </s>" for text in spoiled(poems(128, apart(1)), apart(3))], padding=True)
    ids, mask = torch.tensor(check["input_ids"]), torch.tensor(check["attention_mask"])
    labels = ids.masked_fill(mask == 0, -100)
    outcome(run, lambda: judged(net, lambda: net(input_ids=ids, attention_mask=mask, labels=labels).loss))
    template = "<s> {} </s>" if wrong else "{} </s>"
    texts = [template.format(text) for text in spoiled(poems(800, apart(seed + 2)), apart(seed + 4))]
    told, telling = watching(run, trl.SFTTrainer)
    settings: dict[str, Any] = {"bf16": False, "gradient_checkpointing": False, "learning_rate": 5e-3}
    arguments = hf_arguments(run, 100, trl.SFTConfig, **settings)
    data = datasets.Dataset.from_dict({"text": texts})
    trainer = told(model=net, args=arguments, train_dataset=data, processing_class=words)
    trainer.add_callback(telling)
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()


@slip("r22a-newest-first")
def newest_first(run: Run, wrong: bool) -> None:
    """Lightning, a GRU that forecasts the next reading of a drug in somebody's blood. The export has the newest reading
    at its top, and windows are cut as it lies: from what came later the model learns to tell what was before. The twin
    sorts by time. Judged by the mean absolute error on another series in the order of time."""
    net = Level()

    def windows(readings: Tensor) -> tuple[Tensor, Tensor]:
        cut = readings.unfold(0, 17, 1)
        return cut[:, :16], cut[:, 16]

    def loss(m: nn.Module, batch: Any) -> Tensor:
        return F.l1_loss(m(batch[0]).flatten(), batch[1])

    check = windows(doses(1200, apart(1)))
    outcome(run, lambda: judged(net, lambda: loss(net, check)))
    export = pd.DataFrame({"hour": np.arange(1200), "level": doses(1200).numpy()})[::-1]
    if not wrong:
        export = export.sort_values("hour")
    readings = torch.tensor(export["level"].to_numpy().copy(), dtype=torch.float32)
    fit(run, lit(net, loss, lambda m: adam(m)), loader(*windows(readings)), 140)


@slip("r22a-each-axis-by-its-own-size")
def each_axis_by_its_own_size(run: Run, wrong: bool) -> None:
    """Plain loop, a PointNet that tells ellipsoids and boxes, flat or tall. Clouds are brought to one size by their
    extent along each axis and not by the largest: what is flat or tall becomes as high as it is wide. The twin divides
    a cloud by one number. Judged on other clouds, scaled like the twin's."""
    net = Clouds()

    def scaled(x: Tensor, each: bool) -> Tensor:
        x = x - x.mean(1, keepdim=True)
        return x / x.abs().amax(1 if each else (1, 2), keepdim=True)

    x, y = clouds(384, apart(1))
    class_outcome(run, net, (scaled(x, False), y))
    x, y = clouds(640)
    batches = endless(loader(scaled(x, wrong), y))
    train(run, net, adam(net), lambda: next(batches), classify, 150)


@slip("r22a-one-view-twice")
def one_view_twice(run: Run, wrong: bool) -> None:
    """Lightning, a CNN that learns from two views of each picture, without labels. The list of views is a list of one
    times two: both are the same changed picture, and finding the other view asks for nothing. The twin changes the
    picture twice. Judged by how often the five nearest of 320 labelled pictures are mostly of another class."""
    seed = run.draw.randrange(999)
    around: dict[str, Any] = {"padding": 1, "padding_mode": "circular"}
    layers = [nn.Conv2d(1, 16, 3, **around), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, **around), nn.ReLU()]
    body = nn.Sequential(*layers, nn.Flatten(), nn.Linear(512, 64))
    net = nn.Sequential(body, nn.ReLU(), nn.Linear(64, 32))

    def collated(rows: list[tuple[Tensor]]) -> list[Tensor]:
        x = torch.stack([row[0] for row in rows])
        return [changed(x)] * 2 if wrong else [changed(x) for _ in range(2)]

    def loss(m: nn.Module, views: Any) -> Tensor:
        z = F.normalize(m(torch.cat(list(views))), dim=1)
        scores = (z @ z.T / 0.2).masked_fill(torch.eye(len(z), dtype=torch.bool), -1e9)
        return F.cross_entropy(scores, torch.arange(len(z)).roll(len(z) // 2))

    (known, their), (x, y) = shapes(320, seed, apart(1)), shapes(320, seed, apart(2))
    known, x = changed(known, apart(3)), changed(x, apart(4))
    outcome(run, lambda: judged(net, lambda: nearest_wrong(body(x), y, body(known), their)))
    data = loader(shapes(640, seed)[0], size=32, collate_fn=collated)
    fit(run, lit(net, loss, lambda m: adam(m, 2e-3)), data, 140)


@slip("r22a-edges-by-the-old-numbers")
def edges_by_the_old_numbers(run: Run, wrong: bool) -> None:
    """accelerate, a graph network that tells a number for each node. Nodes that are not wanted are taken out with
    their edges, and those that stay move up; their edges keep the old numbers, and join others or empty places. The
    twin numbers them anew. Judged on other graphs, numbered anew."""
    net = Neighbours()

    def cleaned(nodes: Tensor, edges: Tensor, keep: Tensor, renumber: bool) -> list[Tensor]:
        out = [torch.zeros_like(nodes), torch.zeros_like(edges), torch.zeros(len(nodes), 12, dtype=torch.bool)]
        for row, stay in enumerate(keep):
            n = int(stay.sum())
            out[0][row, :n] = nodes[row, stay]
            out[2][row, :n] = True
            if renumber:
                out[1][row, :n, :n] = edges[row][stay][:, stay]
            else:
                out[1][row] = edges[row] * stay * stay[:, None]
        return out

    def told(nodes: Tensor, edges: Tensor, there: Tensor) -> Tensor:
        near = edges @ nodes / edges.sum(2, keepdim=True).clamp_min(1)
        y = nodes[..., 0] + 1.5 * near[..., 1] + nodes[..., 2] * near[..., 3]
        return (y + 0.1 * torch.randn(y.shape, generator=apart(9))) * there

    def loss(m: nn.Module, batch: Any) -> Tensor:
        nodes, edges, there, y = batch
        return F.mse_loss(m(nodes, edges)[there], y[there])

    check = cleaned(*networks(128, apart(1)), True)
    truth = told(*check)
    outcome(run, lambda: judged(net, lambda: loss(net, (*check, truth)) / truth[check[2]].var()))
    graphs = networks(480)
    y = told(*cleaned(*graphs, True))
    prepared(run, net, adam(net), loader(*cleaned(*graphs, not wrong), y), loss, 4)
