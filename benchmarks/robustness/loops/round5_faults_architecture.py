"""Mistakes in what a network computes, and in its graph."""

import math

import torch
from benchmarks.robustness.loops.case import Run, fault
from benchmarks.robustness.loops.round5_tools import (
    Block,
    Decoder,
    Language,
    apart,
    class_outcome,
    cnn,
    documents,
    fit,
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
    train,
)
from torch import Tensor, nn
from torch.nn import functional as F

FAMILY = "architecture and graph"

UNHELD = r"not in|missing|does not (hold|know|have|contain|own)|no group|never (update|move|change|train)|not (given|updated|held|registered|covered|trained|part)|outside|unregistered|list|hidden from|parameters\(\)"


class Listed(nn.Module):
    """A decoder whose blocks stand in a Python list, or in a ModuleList."""

    def __init__(self, wrong: bool) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(12, 32), nn.Embedding(24, 32)
        blocks = [Block(32) for _ in range(2)]
        self.blocks = blocks if wrong else nn.ModuleList(blocks)
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, 12)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.head(self.norm(x))
        return out


@fault("r5-layers-in-a-list", FAMILY, (r"block|layer|module|parameter|tensor|weight", UNHELD))
def layers_in_a_list(run: Run, wrong: bool) -> None:
    """The blocks stand in a Python list: parameters() does not see them, and they stay as they began. The twin has a
    ModuleList."""
    language = Language(run.draw.randrange(999))
    model = Listed(wrong)
    language_outcome(run, model, language)
    train(run, model, torch.optim.AdamW(model.parameters(), lr=5e-3), lambda: language.rows(12, 20), next_loss, 100)


class Shut(nn.Module):
    """Features of a picture under no_grad, or not, and a head."""

    def __init__(self, wrong: bool) -> None:
        super().__init__()
        self.wrong = wrong
        self.features, self.head = nn.Sequential(*list(cnn())[:-1]), nn.Linear(64, 4)

    def forward(self, x: Tensor) -> Tensor:
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.wrong):
            hidden = self.features(x)
        out: Tensor = self.head(hidden)
        return out


@fault(
    "r5-features-under-no-grad",
    FAMILY,
    (
        r"features|Conv|body|layer|parameter|weight",
        r"no_grad|no gradient|without (a )?gradient|None|never (get|receive|move|update|change)|not (get|receive|reach|train|move|change)|detach|cut|graph|unchanged",
    ),
)
def features_under_no_grad(run: Run, wrong: bool) -> None:
    """Lightning: a no_grad() from the days of frozen features is left in forward(), and only the head learns."""
    seed = run.draw.randrange(999)
    model = Shut(wrong)
    class_outcome(run, model, pictures(256, seed, own=apart(1)))
    module = lit(model, lambda m, b: F.cross_entropy(m(b[0]), b[1]), lambda m: torch.optim.SGD(m.parameters(), lr=0.02))
    fit(run, module, loader(*pictures(320, seed)), 60)


class Reader(nn.Module):
    """A GRU over rows (batch, time, feature), read at its last step."""

    def __init__(self, wrong: bool) -> None:
        super().__init__()
        self.rnn, self.head = nn.GRU(4, 24, batch_first=not wrong), nn.Linear(24, 1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.rnn(x)[0][:, -1])
        return out


@fault(
    "r5-batch-first-forgotten",
    FAMILY,
    (
        r"batch|row|example|time|axis|sequence|step",
        r"batch.first|mix|other (rows|examples|samples)|across|leak|between|axis|axes|order|last (step|place)|depend|only|not (read|use|see)|ignor",
    ),
)
def batch_first_forgotten(run: Run, wrong: bool) -> None:
    """A GRU without batch_first on (batch, time, feature): it runs along the rows of the batch, and of each row only the
    last step is read."""
    model = Reader(wrong)

    def rows(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        x = torch.randn(count, 8, 4, generator=own)
        return x, x[:, :, 0].sum(1)

    number_outcome(run, model, rows(256, apart(1)))
    loss = lambda m, b: F.mse_loss(m(b[0]).flatten(), b[1])
    train(run, model, torch.optim.Adam(model.parameters(), lr=1e-2), lambda: rows(24), loss, 110)


@fault(
    "r5-nothing-between-layers",
    FAMILY,
    (
        r"linear|activation|nonlinear|layer",
        r"activation|nonlinear|non-linear|linear (map|function|model)|collaps|one (linear|matrix)|merge|compos",
    ),
)
def nothing_between_layers(run: Run, wrong: bool) -> None:
    """Three Linear layers in a row without an activation: one matrix, however deep it looks."""
    model = mlp(2, 32, 32, 1, act=nn.Identity if wrong else nn.Tanh)

    def rows(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        x = 2 * torch.rand(count, 2, generator=own) - 1
        return x, x[:, 0] * x[:, 1] * 3

    number_outcome(run, model, rows(256, apart(1)))
    loss = lambda m, b: F.mse_loss(m(b[0]).flatten(), b[1])
    train(run, model, torch.optim.Adam(model.parameters(), lr=1e-2), lambda: rows(48), loss, 130)


@fault(
    "r5-relu-at-the-end",
    FAMILY,
    (r"relu|output|last|negative|range|activation", r"negative|zero|below|cannot|range|never|dead|clip|positive"),
)
def relu_at_the_end(run: Run, wrong: bool) -> None:
    """A loop over layers puts the ReLU after the last one too, in a regression whose targets are negative half of the
    time."""
    seed = run.draw.randrange(999)
    model = nn.Sequential(mlp(6, 32, 32, 1), *([nn.ReLU()] if wrong else []))
    number_outcome(run, model, table(256, seed, apart(1)))
    loss = lambda m, b: F.mse_loss(m(b[0]).flatten(), b[1])
    train(run, model, torch.optim.Adam(model.parameters(), lr=1e-2), lambda: table(32, seed), loss, 90)


class ByRow(nn.Module):
    """An encoder of orders, with sines for the place: the table is cut to the wrong axis, or to the right one."""

    def __init__(self, wrong: bool) -> None:
        super().__init__()
        self.wrong = wrong
        self.tokens = nn.Embedding(9, 32)
        phase = torch.arange(64)[:, None] / 50 ** (torch.arange(16) / 16)
        self.register_buffer("places", torch.cat([phase.sin(), phase.cos()], 1))
        self.block, self.head = Block(32, causal=False), nn.Linear(32, 2)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids)
        at = self.places[: x.shape[0], None] if self.wrong else self.places[: x.shape[1]]
        out: Tensor = self.head(self.block(x + at).mean(1))
        return out


@fault(
    "r5-places-by-row",
    FAMILY,
    (
        r"position|place|order|batch|row",
        r"row|batch|axis|order|same for (all|every)|no (position|order)|not (see|know|depend|change)|insensitive|invarian|permut|wrong (axis|dimension)|depend",
    ),
)
def places_by_row(run: Run, wrong: bool) -> None:
    """Positions as in an old tutorial, x + table[:x.size(0)], on batch-first data: all places of a row get the code of
    the row's number in the batch. Which of two words came first cannot be told."""
    model = ByRow(wrong)

    def rows(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        x = torch.randint(2, 9, (count, 8), generator=own)
        places = torch.stack([torch.randperm(8, generator=own)[:2] for _ in range(count)])
        x.scatter_(1, places[:, :1], 0).scatter_(1, places[:, 1:], 1)
        return x, (places[:, 0] < places[:, 1]).long()

    class_outcome(run, model, rows(64, apart(1)))
    loss = lambda m, b: F.cross_entropy(m(b[0]), b[1])
    train(run, model, torch.optim.AdamW(model.parameters(), lr=5e-3), lambda: rows(48), loss, 120)


class Always(nn.Module):
    """A network with F.dropout, which is on unless it is told otherwise."""

    def __init__(self, wrong: bool) -> None:
        super().__init__()
        self.wrong = wrong
        self.one, self.two, self.out = nn.Linear(6, 48), nn.Linear(48, 48), nn.Linear(48, 1)

    def forward(self, x: Tensor) -> Tensor:
        on = True if self.wrong else self.training
        x = F.dropout(F.relu(self.one(x)), 0.3, training=on)
        out: Tensor = self.out(F.dropout(F.relu(self.two(x)), 0.3, training=on))
        return out


@fault(
    "r5-dropout-in-use",
    FAMILY,
    (r"dropout|random", r"eval|training=|always|still (on|active)|inference|random|in use|mode|differ"),
)
def dropout_in_use(run: Run, wrong: bool) -> None:
    """F.dropout(x, 0.3) without training=self.training drops in evaluation too."""
    seed = run.draw.randrange(999)
    model = Always(wrong)
    number_outcome(run, model, table(256, seed, apart(1)))
    check = table(64, seed, apart(2))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    doctor = run.watch(model, optimizer)
    for step in range(110):
        x, y = table(32, seed)
        loss = F.mse_loss(model(x).flatten(), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        doctor.step(loss, (x, y))
        run.note(loss)
        if step % 20 == 19:
            model.eval()
            with torch.no_grad():
                F.mse_loss(model(check[0]).flatten(), check[1])
            model.train()


class OverRows(nn.Module):
    """A norm by hand, over the axis of features or by mistake over that of rows."""

    def __init__(self, wrong: bool) -> None:
        super().__init__()
        self.axis = 0 if wrong else -1

    def forward(self, x: Tensor) -> Tensor:
        spread = x.var(self.axis, keepdim=True, unbiased=False)
        return (x - x.mean(self.axis, keepdim=True)) / (spread + 1e-5).sqrt()


@fault(
    "r5-norm-over-rows",
    FAMILY,
    (
        r"norm|mean|variance|batch|row",
        r"row|batch|axis|dim|other (rows|examples|samples)|across|between|mix|depend|leak",
    ),
)
def norm_over_rows(run: Run, wrong: bool) -> None:
    """A layer norm written by hand with dim=0: each row is normalised by the others of its batch. In use, rows come
    one by one."""
    seed = run.draw.randrange(999)
    model = nn.Sequential(nn.Linear(6, 32), OverRows(wrong), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))
    x, y = table(64, seed, apart(1))
    one_by_one = lambda: F.mse_loss(torch.cat([model(row[None]) for row in x]).flatten(), y) / y.var()
    outcome(run, lambda: judged(model, one_by_one))
    loss = lambda m, b: F.mse_loss(m(b[0]).flatten(), b[1])
    train(run, model, torch.optim.Adam(model.parameters(), lr=1e-2), lambda: table(32, seed), loss, 120)


class Heads(nn.Module):
    """Causal attention that makes heads by view alone, or with the transpose that belongs to it."""

    def __init__(self, wrong: bool) -> None:
        super().__init__()
        self.wrong = wrong
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, x: Tensor, keep: Tensor | None = None) -> Tensor:
        b, t, _ = x.shape

        def heads(p: Tensor) -> Tensor:
            p = p.contiguous()
            return p.view(b, 4, t, 8) if self.wrong else p.view(b, t, 4, 8).transpose(1, 2)

        q, k, v = map(heads, self.qkv(x).chunk(3, -1))
        scores = (q @ k.transpose(-1, -2) / math.sqrt(8)).masked_fill(torch.ones(t, t).triu(1).bool(), -1e9)
        mixed = scores.softmax(-1) @ v
        joined = mixed.reshape(b, t, 32) if self.wrong else mixed.transpose(1, 2).reshape(b, t, 32)
        out: Tensor = self.out(joined)
        return out


@fault(
    "r5-heads-without-transpose",
    FAMILY,
    (
        r"head|position|place|token|view|reshape|transpose|future|causal|attention",
        r"mix|view|reshape|transpose|scrambl|future|leak|later|across|wrong (place|position)|piece|depend|see",
    ),
)
def heads_without_transpose(run: Run, wrong: bool) -> None:
    """(batch, time, width) is viewed as (batch, heads, time, part) without a transpose: a head's rows are pieces of
    other places, and the causal mask is over the wrong things. Rows repeat four words; judged as in use, word by word."""
    model = Decoder(12)
    model.blocks[0].attention = Heads(wrong)

    def rows(count: int, own: torch.Generator | None = None) -> Tensor:
        return torch.randint(0, 12, (count, 4), generator=own).repeat(1, 5)

    check = rows(128, apart(1))

    def in_use() -> Tensor:
        return torch.stack([F.cross_entropy(model(check[:, :t])[:, -1], check[:, t]) for t in (9, 13, 16, 18)]).mean()

    outcome(run, lambda: judged(model, in_use))
    train(run, model, torch.optim.AdamW(model.parameters(), lr=5e-3), lambda: rows(16), next_loss, 120)


class Noise(nn.Module):
    """The noise in a number at a time, which is looked up and, by mistake, not used."""

    def __init__(self, wrong: bool) -> None:
        super().__init__()
        self.wrong = wrong
        self.time, self.body = (
            nn.Sequential(nn.Linear(1, 16), nn.SiLU(), nn.Linear(16, 16)),
            mlp(18, 48, 2, act=nn.SiLU),
        )

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        time = self.time(t[:, None])
        out: Tensor = self.body(torch.cat([x, torch.zeros_like(time) if self.wrong else time], 1))
        return out


@fault(
    "r5-time-not-used",
    FAMILY,
    (
        r"time",
        r"no gradient|not (used|get|receive|reach|move|depend|train|part)|unused|ignored|never|None|zero gradient|gradient is zero|does not (move|change|depend)|unchanged|disconnect|without",
    ),
)
def time_not_used(run: Run, wrong: bool) -> None:
    """Diffusion: the embedding of the time is computed and then not given on: the network does not know how much noise
    there is."""
    model = Noise(wrong)

    def batch(count: int = 64, own: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
        x = torch.sign(torch.randn(count, 2, generator=own)) + 0.05 * torch.randn(count, 2, generator=own)
        return x, torch.rand(count, generator=own), torch.randn(count, 2, generator=own)

    def loss(m: nn.Module, b: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        x, t, noise = b
        keep = torch.cos(1.5 * t)[:, None]
        return F.mse_loss(m(keep * x + (1 - keep**2).sqrt() * noise, t), noise)

    check = batch(512, apart(1))
    outcome(run, lambda: judged(model, lambda: loss(model, check)))
    train(run, model, torch.optim.Adam(model.parameters(), lr=8e-3), batch, loss, 140)


class Experts(nn.Module):
    """A mixture of four linear experts, one for each row."""

    def __init__(self, wrong: bool) -> None:
        super().__init__()
        self.wrong = wrong
        self.router = nn.Linear(6, 4)
        self.experts = nn.ModuleList(nn.Linear(6, 1) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        gate = self.router(x).softmax(1)
        best, which = gate.max(1)
        outs = torch.stack([e(x) for e in self.experts], 1).squeeze(2)
        chosen = outs.gather(1, which[:, None])
        return chosen if self.wrong else chosen * best[:, None]


@fault(
    "r5-router-without-gradient",
    FAMILY,
    (
        r"router|gate|rout",
        r"no gradient|without (a )?gradient|never|not (get|receive|reach|move|train|learn|change)|argmax|None|unchanged|does not (move|change|learn)|cut|random|differentiable|unused",
    ),
)
def router_without_gradient(run: Run, wrong: bool) -> None:
    """A mixture of experts picks the best expert by index and forgets to multiply by its gate: the router gets no
    gradient, and routing stays random."""
    own = apart(run.draw.randrange(999))
    centres, slopes = 3 * torch.randn(4, 6, generator=own), 2 * torch.randn(4, 6, generator=own)
    model = Experts(wrong)

    def rows(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        kind = torch.randint(0, 4, (count,), generator=own)
        x = centres[kind] + torch.randn(count, 6, generator=own)
        return x, ((x - centres[kind]) * slopes[kind]).sum(1)

    number_outcome(run, model, rows(400, apart(1)))
    loss = lambda m, b: F.mse_loss(m(b[0]).flatten(), b[1])
    train(run, model, torch.optim.Adam(model.parameters(), lr=1.5e-2), lambda: rows(64), loss, 150)


class Translator(nn.Module):
    """PyTorch's Transformer: an encoder, a decoder, and words of 12."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(13, 32), nn.Embedding(8, 32)
        self.net = nn.Transformer(32, 2, 1, 1, 64, 0.0, batch_first=True)
        self.head = nn.Linear(32, 13)

    def embed(self, ids: Tensor) -> Tensor:
        out: Tensor = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        return out

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        mask = torch.ones(target.shape[1], target.shape[1], dtype=torch.bool).triu(1)
        out: Tensor = self.head(self.net(self.embed(source), self.embed(target), tgt_mask=mask))
        return out


@fault(
    "r5-decoder-sees-its-target",
    FAMILY,
    (
        r"decoder|target|label|input|shift|answer",
        r"shift|itself|same (token|place|position)|copy|copies|leak|sees|identical|equal|contains|current",
    ),
)
def decoder_sees_its_target(run: Run, wrong: bool) -> None:
    """Encoder and decoder: the decoder's input is the target itself, not shifted by the start token; it learns to copy
    and never looks at the source. Judged with the shift."""
    cipher = torch.randperm(12, generator=apart(run.draw.randrange(999))) + 1
    model = Translator()

    def rows(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        source = torch.randint(1, 13, (count, 6), generator=own)
        return source, cipher[source - 1]

    def loss(m: nn.Module, b: tuple[Tensor, Tensor], shifted: bool = not wrong) -> Tensor:
        source, target = b
        given = torch.cat([torch.zeros_like(target[:, :1]), target[:, :-1]], 1) if shifted else target
        return F.cross_entropy(m(source, given).flatten(0, 1), target.flatten())

    check = rows(128, apart(1))
    outcome(run, lambda: judged(model, lambda: loss(model, check, True)))
    train(run, model, torch.optim.AdamW(model.parameters(), lr=3e-3), lambda: rows(24), loss, 130)


class Pool(nn.Module):
    """Words weighed by a learned score."""

    def __init__(self, wrong: bool) -> None:
        super().__init__()
        self.axis = 0 if wrong else 1
        self.tokens, self.score, self.head = nn.Embedding(16, 24), nn.Linear(24, 1), nn.Linear(24, 4)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids)
        weight = self.score(x).softmax(self.axis)
        out: Tensor = self.head((weight * x).sum(1))
        return out


@fault(
    "r5-softmax-over-the-batch",
    FAMILY,
    (
        r"softmax|batch|row|axis|dim|example",
        r"batch|axis|dim|other (rows|examples|samples)|across|between|mix|depend|leak|row",
    ),
)
def softmax_over_the_batch(run: Run, wrong: bool) -> None:
    """Attention over words with softmax(0): weights sum to one over the rows of the batch instead of over the words of
    a row. Judged in batches of eight, as in use."""
    model = Pool(wrong)

    def rows(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        x = torch.randint(0, 12, (count, 10), generator=own)
        y = torch.randint(0, 4, (count,), generator=own)
        x.scatter_(1, torch.randint(0, 10, (count, 1), generator=own), 12 + y[:, None])
        return x, y

    x, y = rows(128, apart(1))
    parts = lambda: torch.stack([F.cross_entropy(model(x[i : i + 4]), y[i : i + 4]) for i in range(0, 128, 4)]).mean()
    outcome(run, lambda: judged(model, parts))
    loss = lambda m, b: F.cross_entropy(m(b[0]), b[1])
    train(run, model, torch.optim.Adam(model.parameters(), lr=1e-2), lambda: rows(32), loss, 100)


@fault(
    "r5-sigmoids-all-the-way",
    FAMILY,
    (r"gradient|sigmoid|saturat", r"vanish|shrink|small|fade|die|first layer|saturat|tiny|decay|early layers|front"),
)
def sigmoids_all_the_way(run: Run, wrong: bool) -> None:
    """Nine layers of sigmoids with PyTorch's initialisation and no residual: the gradient fades by a factor of ten in
    each. The twin has ReLU and norms."""
    seed = run.draw.randrange(999)
    body = mlp(64, *[24] * 8, 4, act=nn.Sigmoid if wrong else nn.ReLU, norm=not wrong)
    model = nn.Sequential(nn.Flatten(), body)
    class_outcome(run, model, pictures(256, seed, own=apart(1)))
    loss = lambda m, b: F.cross_entropy(m(b[0]), b[1])
    train(run, model, torch.optim.SGD(model.parameters(), lr=0.1), lambda: pictures(24, seed), loss, 90)


class LastPlace(nn.Module):
    """A GRU read at its last place, or at the last word."""

    def __init__(self, wrong: bool) -> None:
        super().__init__()
        self.wrong = wrong
        self.tokens, self.rnn, self.head = nn.Embedding(16, 16), nn.GRU(16, 24, batch_first=True), nn.Linear(24, 3)

    def forward(self, ids: Tensor, keep: Tensor) -> Tensor:
        states = self.rnn(self.tokens(ids))[0]
        last = states[:, -1] if self.wrong else states[torch.arange(len(ids)), keep.sum(1) - 1]
        out: Tensor = self.head(last)
        return out


@fault(
    "r5-last-place-is-padding",
    FAMILY,
    (r"pad", r"last|end|pool|read|after|state|moves|depend|changes|length|position|place|output"),
)
def last_place_is_padding(run: Run, wrong: bool) -> None:
    """A recurrent classifier on right-padded rows takes the state at the last place, which for most rows comes after
    dozens of padding tokens. The twin takes it at the last word."""
    model = LastPlace(wrong)

    def rows(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
        x, keep, y = documents(count, own)
        x, keep = F.pad(x, (0, 24)), F.pad(keep, (0, 24))
        return x, keep, y

    class_outcome(run, model, rows(256, apart(1)))
    loss = lambda m, b: F.cross_entropy(m(b[0], b[1]), b[2])
    train(run, model, torch.optim.AdamW(model.parameters(), lr=5e-3), lambda: rows(24), loss, 90)
