"""Round 24h, honest and odd: which rows are shown, and what is taught of them."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import (
    apart,
    documents,
    examples,
    fit,
    hf_trainer,
    judged,
    lit,
    loader,
    mlp,
    outcome,
    tiny_bert,
    train,
)
from benchmarks.robustness.loops.round6_tools import prepared, regress
from benchmarks.robustness.loops.round7b_tools import adam, taught
from torch import Tensor, nn
from torch.nn import functional as F


@honest("r24h-half-of-each-sentence-in-another-tongue")
def half_of_each_sentence_in_another_tongue(run: Run) -> None:
    """A transformers Trainer, texts of a tongue that has no labels, by code switching (CoSDA-ML, Qin et al. 2020). All
    labelled texts are of the first tongue; the collator puts, anew in each batch, the dictionary's translation in the
    place of every other word, so that no sentence is one that anybody would say. What counts is the second tongue
    alone, of which no whole text is ever shown."""
    own = apart(run.draw.randrange(999))
    translation = torch.cat([torch.zeros(1, dtype=torch.long), 16 + torch.randperm(15, generator=own)])
    ids, mask, classes = documents(384, own)
    model = tiny_bert(vocab_size=32, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    foreign, kept, truth = documents(256, apart(1))

    def measure() -> Tensor:
        return F.cross_entropy(model(input_ids=translation[foreign], attention_mask=kept.long()).logits, truth)

    outcome(run, lambda: judged(model, measure))

    def switched(rows: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        batch = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
        words = batch["input_ids"]
        batch["input_ids"] = torch.where(torch.rand(words.shape) < 0.5, translation[words], words)
        return batch

    data = examples(input_ids=ids, attention_mask=mask.long(), labels=classes)
    hf_trainer(run, model, data, 120, more={"data_collator": switched}, learning_rate=2e-3).train()


@honest("r24h-the-model-is-the-index")
def the_model_is_the_index(run: Run) -> None:
    """A transformers Trainer, a small T5 that is a search engine (differentiable search index, Tay et al. 2022). The
    labels are names of documents, two digits drawn by lot that say nothing of what is in them, so that there is nothing
    to learn but by heart; a document comes as words of its text in some rows and as one of its questions in others.
    What counts is questions to documents of which only the text was shown."""
    from transformers import T5Config, T5ForConditionalGeneration

    own = apart(run.draw.randrange(999))
    texts = torch.stack([2 + torch.randperm(80, generator=own)[:8] for _ in range(24)])
    names = 84 + torch.stack([torch.arange(24) // 5, 5 + torch.arange(24) % 5], 1)[torch.randperm(24, generator=own)]
    labels = torch.cat([names, torch.ones(24, 1, dtype=torch.long)], 1)

    def asked(which: Tensor) -> Tensor:
        """Three words of each document in any order, and an empty place."""
        return F.pad(texts[which].gather(1, torch.rand(len(which), 8).topk(3).indices), (0, 1))

    def piece(which: Tensor) -> Tensor:
        """Three or four words of each document in their order; 0 is an empty place."""
        words = texts[which].gather(1, torch.rand(len(which), 8).topk(4).indices.sort(1).values)
        words[torch.rand(len(which)) < 0.5, 3] = 0
        return words

    rows = examples(
        document=torch.cat([torch.arange(24), torch.arange(16)]).repeat(12), kind=torch.arange(480) % 40 // 24
    )
    settings: dict[str, Any] = {"vocab_size": 96, "d_model": 48, "d_kv": 24, "d_ff": 96, "num_layers": 1}
    settings |= {"num_heads": 2, "dropout_rate": 0.0, "pad_token_id": 0, "decoder_start_token_id": 0}
    model = T5ForConditionalGeneration(T5Config(**settings))
    with torch.random.fork_rng():
        unseen = torch.arange(16, 24).repeat(12)
        questions = asked(unseen)

    def measure() -> Tensor:
        out: Tensor = model(input_ids=questions, attention_mask=(questions > 0).long(), labels=labels[unseen]).loss
        return out

    outcome(run, lambda: judged(model, measure))

    def batched(rows: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        which = torch.stack([row["document"] for row in rows])
        question = torch.stack([row["kind"] for row in rows])[:, None] == 1
        ids = torch.where(question, asked(which), piece(which))
        return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": labels[which]}

    options = {"learning_rate": 4e-3, "per_device_train_batch_size": 48, "remove_unused_columns": False}
    hf_trainer(run, model, rows, 140, more={"data_collator": batched}, **options).train()


@honest("r24h-mean-label-of-the-rows-before")
def mean_label_of_the_rows_before(run: Run) -> None:
    """accelerate, a table with a column of towns by ordered target statistics (CatBoost, Prokhorenkova et al. 2018).
    One of the inputs is made of labels: the mean label of the same town's rows, but only of those that come before
    it in an order drawn by lot; the first row of a town is told the mean of all. Four orders make four versions of each
    row, with other inputs and the same label. In use all training rows are before."""
    own = apart(run.draw.randrange(999))
    worth, weights = 2 * torch.randn(40, generator=own), torch.randn(4, generator=own)

    def drawn(count: int, own: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        town, x = torch.randint(0, 40, (count,), generator=own), torch.randn(count, 4, generator=own)
        return town, x, worth[town] + x @ weights + 0.5 * torch.randn(count, generator=own)

    town, x, y = drawn(400, own)
    prior = y.mean()

    def before() -> Tensor:
        """Of each row, the mean label of its town's rows earlier in a new order; the prior counts as one row."""
        order = torch.randperm(400, generator=own)
        labels = F.one_hot(town[order], 40) * y[order, None]
        seen = F.one_hot(town[order], 40)
        sums, counts = labels.cumsum(0) - labels, seen.cumsum(0) - seen
        each = ((sums + prior) / (counts + 1)).gather(1, town[order, None]).squeeze(1)
        return torch.empty(400).index_copy_(0, order, each)

    inputs = torch.cat([torch.cat([x, before()[:, None]], 1) for _ in range(4)])
    new_town, new, truth = drawn(300, apart(1))
    counts, sums = torch.bincount(town, minlength=40), torch.zeros(40).index_add_(0, town, y)
    told = torch.cat([new, ((sums + prior) / (counts + 1))[new_town, None]], 1)
    model = mlp(5, 48, 48, 1)
    outcome(run, lambda: judged(model, lambda: F.mse_loss(model(told).squeeze(1), truth) / truth.var()))
    prepared(run, model, adam(model, 2e-3), loader(inputs, y.repeat(4), size=32), regress, 3)


@honest("r24h-residuals-explain-residuals")
def residuals_explain_residuals(run: Run) -> None:
    """Lightning, the effect of a treatment by the R-learner with cross-fitting (Nie and Wager 2021, econml). No row has
    the label that is wanted. The network learns to multiply what was not expected of the treatment (some hundredths to
    one, of either sign) so that it meets what was not expected of the outcome; both expectations are of networks that
    were fitted on the other half of the rows. About half of what the loss begins with is noise that stays."""
    own = apart(run.draw.randrange(999))
    plan = torch.randn(6, generator=own)

    def effect(x: Tensor) -> Tensor:
        return 1 + 2 * torch.tanh(x[:, 0]) + x[:, 1]

    def drawn(count: int) -> tuple[Tensor, Tensor, Tensor]:
        x = torch.randn(count, 6, generator=own)
        treated = (torch.rand(count, generator=own) < (0.8 * x[:, 2]).sigmoid()).float()
        noise = 0.5 * torch.randn(count, generator=own)
        return x, treated, x @ plan + x[:, 2].square() + treated * effect(x) + noise

    x, treated, y = drawn(1000)
    halves = (torch.arange(500), torch.arange(500, 1000))
    left = torch.empty(1000, 2)
    for fitted, told in (halves, halves[::-1]):
        for column, label in enumerate((treated, y)):
            nuisance = mlp(6, 32, 1)

            def some(fitted: Tensor = fitted, label: Tensor = label) -> tuple[Tensor, Tensor]:
                rows = fitted[torch.randint(0, len(fitted), (64,))]
                return x[rows], label[rows]

            taught(nuisance, some, regress, 200, 5e-3)
            with torch.no_grad():
                left[told, column] = label[told] - nuisance(x[told]).squeeze(1)
    model = mlp(6, 32, 1)
    new = torch.randn(400, 6, generator=apart(1))
    truth = effect(new)
    outcome(run, lambda: judged(model, lambda: F.mse_loss(model(new).squeeze(1), truth) / truth.var()))

    def loss(net: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        x, unexpected = batch
        return (unexpected[:, 1] - unexpected[:, 0] * net(x).squeeze(1)).square().mean()

    module = lit(model, loss, lambda net: torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=0.01))
    fit(run, module, loader(x, left, size=64), 150)


def strips(own: torch.Generator, side: int = 64) -> Tensor:
    """(1, 1, side, side): one picture of straight edges in many directions, of few greys."""
    at = torch.stack(torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")) / side - 0.5
    picture = torch.zeros(side, side)
    for _ in range(14):
        angle, place, grey = (torch.rand(3, generator=own) - 0.5).tolist()
        ahead = at[0] * torch.tensor(6.28 * angle).cos() + at[1] * torch.tensor(6.28 * angle).sin() - 0.8 * place
        picture = torch.where((ahead > 0) & (ahead < 0.25), torch.tensor(grey), picture)
    return picture[None, None]


@honest("r24h-a-picture-and-its-own-half")
def a_picture_and_its_own_half(run: Run) -> None:
    """Plain loop, a picture enlarged by what it itself looks like (ZSSR, Shocher et al. 2018). There is one picture, no
    other was ever seen: pieces of it are the labels and the same pieces at half size, drawn larger again, the inputs,
    turned and mirrored. Input and label are nearly the same, the network gives only what is missing and begins with
    nothing. What counts is the picture at twice its size, which it never had."""
    truth = strips(apart(run.draw.randrange(999)))
    given = F.avg_pool2d(truth, 2)

    def larger(x: Tensor) -> Tensor:
        return F.interpolate(x, scale_factor=2, mode="bicubic")

    def layer(a: int, b: int) -> list[nn.Module]:
        return [nn.Conv2d(a, b, 3, padding=1, padding_mode="replicate"), nn.ReLU()]

    last = nn.Conv2d(24, 1, 3, padding=1, padding_mode="replicate")
    nn.init.zeros_(last.weight)
    model = nn.Sequential(*layer(1, 24), *layer(24, 24), *layer(24, 24), last)
    blurred = larger(given)
    outcome(run, lambda: judged(model, lambda: 100 * (blurred + model(blurred) - truth).square().mean()))

    def pieces() -> tuple[Tensor, Tensor]:
        out = []
        for row, column in (2 * torch.randint(0, 5, (8, 2))).tolist():
            piece = given[..., row : row + 24, column : column + 24].rot90(int(torch.randint(0, 4, ())), (2, 3))
            out.append(piece.flip(3) if torch.rand(()) < 0.5 else piece)
        label = torch.cat(out)
        return larger(F.avg_pool2d(label, 2)), label

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return (batch[0] + model(batch[0]) - batch[1]).abs().mean()

    train(run, model, adam(model, 2e-3), pieces, loss, 200)


class Arrivals:
    """Rows as they come in, each read once: told, compared with what then happened, and only then learned from."""

    def __init__(self, run: Run, model: nn.Module, rate: float) -> None:
        self.run, self.model = run, model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=rate)
        self.count, self.mean, self.square = 0, torch.zeros(6), torch.ones(6)
        self.doctor = run.watch(model, self.optimizer)

    def scaled(self, x: Tensor) -> Tensor:
        return (x - self.mean) / (self.square - self.mean.square()).clamp_min(1e-4).sqrt()

    def meet(self, x: Tensor, y: Tensor) -> None:
        self.count += len(x)
        share = len(x) / self.count
        self.mean = self.mean + share * (x.mean(0) - self.mean)
        self.square = self.square + share * (x.square().mean(0) - self.square)
        inputs = self.scaled(x)
        loss = F.binary_cross_entropy_with_logits(self.model(inputs).squeeze(1), y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.doctor.step(loss, (inputs, y))
        self.run.note(loss)


@honest("r24h-the-world-changes-twice")
def the_world_changes_twice(run: Run) -> None:
    """A class of its own, learning from a stream that drifts (Gama et al. 2014, river and deep-river). Rows are never
    shuffled and none comes again; the loss of each batch is a test, since it was told before it was learned. Twice
    without notice the labels begin to follow another rule, by which the loss jumps, as a rule to above its start;
    the rate is high and stays, so as to follow. Columns are scaled by running sums, which keep moving."""
    own = apart(run.draw.randrange(999))
    rules = torch.randn(3, 6, generator=own)
    sizes = torch.tensor([0.1, 1.0, 5.0, 1.0, 20.0, 1.0])

    def happened(count: int, rule: Tensor, own: torch.Generator) -> tuple[Tensor, Tensor]:
        plain = torch.randn(count, 6, generator=own)
        y = (2 * plain @ rule + 0.5 * torch.randn(count, generator=own) > 0).float()
        return sizes * (plain + 1), y

    model = mlp(6, 24, 1)
    stream = Arrivals(run, model, 0.3)
    x, y = happened(300, rules[2], apart(1))

    def measure() -> Tensor:
        return F.binary_cross_entropy_with_logits(model(stream.scaled(x)).squeeze(1), y)

    outcome(run, lambda: judged(model, measure))
    for step in range(195):
        stream.meet(*happened(16, rules[step // 65], own))


class Smoothed(nn.Module):
    """Two layers of a graph convolution over whichever nodes are given."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(8, 32), nn.Linear(32, 4)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        edges = edges + torch.eye(len(edges))
        root = edges.sum(1).rsqrt()
        share = root[:, None] * edges * root
        out: Tensor = share @ self.leave((share @ self.enter(x)).relu())
        return out


@honest("r24h-each-batch-a-few-districts")
def each_batch_a_few_districts(run: Run) -> None:
    """Plain loop, a large map by Cluster-GCN (Chiang et al. 2019, PyTorch Geometric's ClusterLoader). The map is cut
    into districts beforehand, a batch is all nodes of three of them, and roads to districts that were not drawn do not
    exist in it, so that a node has other neighbours in each batch and in use more than ever. Rows of a batch are alike
    on purpose, and half of them have no label."""
    own = apart(run.draw.randrange(999))
    side = 20
    row, column = torch.arange(side * side) // side, torch.arange(side * side) % side
    near = (row[:, None] - row).abs() + (column[:, None] - column).abs()
    edges = (near == 1).float()
    hills = torch.randn(4, 3, generator=own)
    wave = torch.stack([(0.4 * row * a + 0.4 * column * b + 3 * c).sin() for a, b, c in hills.tolist()], 1)
    classes = wave.argmax(1)
    x = torch.randn(4, 8, generator=own)[classes] + 1.5 * torch.randn(side * side, 8, generator=own)
    labelled = torch.rand(side * side, generator=own) < 0.5
    district = 4 * (row // 5) + column // 5
    model = Smoothed()
    held = ~labelled
    outcome(run, lambda: judged(model, lambda: F.cross_entropy(model(x, edges)[held], classes[held])))

    def some() -> tuple[Tensor, Tensor, Tensor, Tensor]:
        nodes = torch.isin(district, torch.randperm(16)[:3])
        return x[nodes], edges[nodes][:, nodes], classes[nodes], labelled[nodes]

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor, Tensor, Tensor]) -> Tensor:
        x, edges, classes, labelled = batch
        return F.cross_entropy(model(x, edges)[labelled], classes[labelled])

    train(run, model, adam(model, 1e-2), some, loss, 150)
