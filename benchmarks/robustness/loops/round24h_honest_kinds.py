"""Round 24h, honest and odd: models of prototypes, translations, energies, flows and mixtures."""

import math

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import apart, fit, judged, lit, loader, mlp, outcome, pictures, train
from benchmarks.robustness.loops.round7b_tools import adam, update
from torch import Tensor, nn
from torch.nn import functional as F


class Nearest(nn.Module):
    """Two prototypes for each class, and the matrix by which a row is compared with them."""

    def __init__(self, x: Tensor, y: Tensor, classes: int = 3) -> None:
        super().__init__()
        first = torch.cat([torch.nonzero(y == k).squeeze(1)[:2] for k in range(classes)])
        self.prototypes, self.matrix = nn.Parameter(x[first].clone()), nn.Parameter(torch.eye(x.shape[1]))
        self.register_buffer("classes", torch.arange(classes).repeat_interleave(2))

    def forward(self, x: Tensor) -> Tensor:
        """(rows, prototypes) squared distances."""
        return ((x[:, None] - self.prototypes) @ self.matrix).square().sum(2)


@honest("r24h-nearer-to-its-own-than-to-others")
def nearer_to_its_own_than_to_others(run: Run) -> None:
    """Lightning, a table by generalised matrix learning vector quantisation (Sato and Yamada 1995, Schneider et al.
    2009, prototorch). There is no layer and no logit: a class is two rows of the table that may move, and one
    matrix says which columns count. The loss is between -1 and 1 and soon below zero, of each row only its nearest
    own and its nearest foreign prototype move, and the matrix is put back to a trace of one after each update,
    since its size has no meaning."""
    own = apart(run.draw.randrange(999))
    centres = 2 * torch.randn(3, 2, 3, generator=own)

    def drawn(count: int, own: torch.Generator) -> tuple[Tensor, Tensor]:
        y, which = torch.randint(0, 3, (count,), generator=own), torch.randint(0, 2, (count,), generator=own)
        useful = centres[y, which] + 0.6 * torch.randn(count, 3, generator=own)
        return torch.cat([useful, 2.5 * torch.randn(count, 5, generator=own)], 1), y

    x, y = drawn(500, own)
    model = Nearest(x, y)

    def loss(net: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        far, mine = net(batch[0]), batch[1][:, None] == net.classes
        near_own, near_other = (far.masked_fill(~kept, math.inf).amin(1) for kept in (mine, ~mine))
        return ((near_own - near_other) / (near_own + near_other)).mean()

    check = drawn(400, apart(1))
    outcome(run, lambda: judged(model, lambda: 1 + loss(model, check)))
    module = lit(model, loss, lambda net: torch.optim.Adam(net.parameters(), lr=2e-2))

    def to_size_one(*_: object) -> None:
        with torch.no_grad():
            model.matrix.div_(model.matrix.norm())

    module.on_train_batch_end = to_size_one
    fit(run, module, loader(x, y, size=32), 150)


class Translations(nn.Module):
    """A vector for each thing and one for each relation: a thing, moved by the relation, should be the other thing."""

    def __init__(self, things: int, relations: int, width: int = 12) -> None:
        super().__init__()
        self.things, self.relations = nn.Embedding(things, width), nn.Embedding(relations, width)
        for table in (self.things, self.relations):
            nn.init.uniform_(table.weight, -6 / math.sqrt(width), 6 / math.sqrt(width))
        self.relations.weight.data = F.normalize(self.relations.weight.data)

    def forward(self, facts: Tensor) -> Tensor:
        head, relation, tail = facts.T
        return (self.things(head) + self.relations(relation) - self.things(tail)).norm(dim=1)


class Knowledge:
    """The original's loop: things to unit length, facts and spoiled facts, a margin."""

    def __init__(self, run: Run, model: Translations, facts: Tensor) -> None:
        self.run, self.model, self.facts = run, model, facts
        self.optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
        self.doctor = run.watch(model, self.optimizer)

    def step(self) -> None:
        with torch.no_grad():
            self.model.things.weight.copy_(F.normalize(self.model.things.weight))
        true = self.facts[torch.randint(0, len(self.facts), (64,))]
        spoiled = true.clone()
        side = 2 * torch.randint(0, 2, (64,))
        spoiled[torch.arange(64), side] = torch.randint(0, self.model.things.num_embeddings, (64,))
        self.optimizer.zero_grad()
        loss = (0.5 + self.model(true) - self.model(spoiled)).clamp_min(0).mean()
        loss.backward()
        self.optimizer.step()
        self.doctor.step(loss, (true, spoiled))
        self.run.note(loss)


@honest("r24h-a-thing-moved-by-its-relation")
def a_thing_moved_by_its_relation(run: Run) -> None:
    """A class of its own, a graph of facts by TransE (Bordes et al. 2013, PyKEEN). There is no network, only two
    tables of vectors. The wrong facts are true ones with one end drawn by lot, which may be true all the same or
    the fact itself; the tables' rows are set to length one at the beginning of each step and leave it by the
    update; more and more pairs keep the margin and give no gradient. What counts is how many things are taken for
    likelier than the right one in facts that were held out."""
    own = apart(run.draw.randrange(999))
    places = torch.cartesian_prod(torch.arange(7), torch.arange(7))
    moves = torch.tensor([[0, 1], [1, 0], [1, 1], [0, 2], [2, -1]])
    known = {(int(a), int(b)): i for i, (a, b) in enumerate(places)}
    all_facts = [
        (i, r, known[int(a + da), int(b + db)])
        for i, (a, b) in enumerate(places)
        for r, (da, db) in enumerate(moves)
        if (int(a + da), int(b + db)) in known
    ]
    facts = torch.tensor(all_facts)[torch.randperm(len(all_facts), generator=own)]
    model = Translations(49, 5)

    def rank() -> Tensor:
        asked = facts[150:, None].repeat(1, 49, 1)
        asked[:, :, 2] = torch.arange(49)
        with_unit = F.normalize(model.things.weight)
        moved = with_unit[asked[..., 0]] + model.relations(asked[..., 1])
        far = (moved - with_unit[asked[..., 2]]).norm(dim=2)
        return (far < far.gather(1, facts[150:, 2:])).float().mean()

    outcome(run, lambda: judged(model, rank))
    knowledge = Knowledge(run, model, facts[:150])
    for _ in range(200):
        knowledge.step()


class PartsAlike(nn.Module):
    """How alike a picture's parts are to eight prototypes of parts, two for each class, and a fixed sum of it."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 16, 3, padding=1), nn.Sigmoid(), nn.AvgPool2d(2)
        )
        self.prototypes = nn.Parameter(torch.rand(8, 16))
        self.head = nn.Linear(8, 4, bias=False)
        own = F.one_hot(torch.arange(4).repeat_interleave(2)).float()
        self.head.weight.data = (1.5 * own - 0.5).T.contiguous()
        self.register_buffer("own", own)

    def parts(self, x: Tensor) -> Tensor:
        return self.body(x).flatten(2).transpose(1, 2)

    def nearest(self, x: Tensor) -> Tensor:
        """(rows, prototypes): the squared distance of the part that is nearest."""
        return torch.cdist(self.parts(x), self.prototypes.expand(len(x), -1, -1)).square().amin(1)

    def forward(self, x: Tensor) -> Tensor:
        near = self.nearest(x)
        out: Tensor = self.head(((near + 1) / (near + 1e-2)).log())
        return out

    @torch.no_grad()
    def push(self, x: Tensor, y: Tensor) -> None:
        """Each prototype becomes that part of a training picture of its class which is next to it."""
        for index in range(8):
            parts = self.parts(x[y == index // 2]).flatten(0, 1)
            far = (parts - self.prototypes[index]).square().sum(1)
            self.prototypes[index] = parts[far.argmin()]


@honest("r24h-parts-of-pictures-put-in-the-weights")
def parts_of_pictures_put_in_the_weights(run: Run) -> None:
    """Plain loop, pictures by prototypical parts in the original's stages (ProtoPNet, Chen et al. 2019). The head
    has fixed weights of 1 and -0.5 and does not learn until the end; the loss has a term that counts distances with
    a minus. Twice all prototypes are overwritten with parts of training pictures, which may undo some of what was
    learned, and after the second time a new optimizer trains the head alone, with a penalty on its foreign
    weights."""
    seed = run.draw.randrange(999)
    x, y = pictures(400, seed, own=apart(2))
    new, truth = pictures(400, seed, own=apart(1))
    model = PartsAlike()
    outcome(run, lambda: judged(model, lambda: F.cross_entropy(model(new), truth)))
    model.head.requires_grad_(False)
    groups = [{"params": model.body.parameters(), "lr": 3e-3}, {"params": [model.prototypes], "lr": 1e-2}]
    optimizer = torch.optim.Adam(groups)
    doctor = run.watch(model, optimizer)
    for step in range(140):
        rows = torch.randint(0, 400, (32,))
        near, mine = model.nearest(x[rows]), model.own.T[y[rows]] > 0
        close = near.masked_fill(~mine, math.inf).amin(1).mean()
        apart_from = near.masked_fill(mine, math.inf).amin(1).mean()
        loss = F.cross_entropy(model(x[rows]), y[rows]) + 0.8 * close - 0.08 * apart_from
        update(run, doctor, optimizer, loss, (x[rows], y[rows]))
        if step in (69, 139):
            model.push(x, y)
    for part in model.parameters():
        part.requires_grad_(part is model.head.weight)
    last = torch.optim.Adam(model.head.parameters(), lr=1e-2)
    doctor = run.watch(model, last)
    for _ in range(40):
        rows = torch.randint(0, 400, (64,))
        foreign = (model.head.weight * (1 - model.own.T)).abs().sum()
        loss = F.cross_entropy(model(x[rows]), y[rows]) + 1e-3 * foreign
        update(run, doctor, last, loss, (x[rows], y[rows]))


def ring(count: int, own: torch.Generator | None = None) -> Tensor:
    """Points on three arcs of a circle."""
    angle = 2 * math.pi * (torch.randint(0, 3, (count,), generator=own) + 0.5 * torch.rand(count, generator=own)) / 3
    points = 1.5 * torch.stack([angle.cos(), angle.sin()], 1)
    return points + 0.05 * torch.randn(count, 2, generator=own)


class Shortcuts(nn.Module):
    """Where to go from a point at a time, if the step is to be of a given length."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp(6, 96, 96, 96, 2, act=nn.SiLU)

    def forward(self, x: Tensor, time: Tensor, length: Tensor) -> Tensor:
        waves = 2 * math.pi * time
        out: Tensor = self.net(torch.cat([x, time, length, waves.sin(), waves.cos()], 1))
        return out


@honest("r24h-two-short-steps-teach-a-long-one")
def two_short_steps_teach_a_long_one(run: Run) -> None:
    """Lightning, a flow that is drawn in one step, a shortcut model (Frans et al. 2025). Three rows in four have
    the way from noise to data as the label, which no network can meet and whose loss stays high; the fourth has as
    its label what the network itself says, at the same weights and without a gradient, in two steps of half the
    length. The latter labels move as long as it learns, and what counts is drawn in a single step from noise."""
    model = Shortcuts()
    real, noise = ring(400, apart(1)), torch.randn(400, 2, generator=apart(2))

    def energy_distance() -> Tensor:
        made = noise + model(noise, torch.zeros(400, 1), torch.ones(400, 1))
        return 2 * torch.cdist(made, real).mean() - torch.cdist(made, made).mean() - torch.cdist(real, real).mean()

    outcome(run, lambda: judged(model, energy_distance))

    def loss(net: nn.Module, batch: list[Tensor]) -> Tensor:
        data = batch[0]
        start, quarter = torch.randn_like(data), len(data) // 4
        halves = 0.5 ** torch.randint(1, 4, (quarter, 1))
        many = torch.rand(len(data) - quarter, 1)
        time = torch.cat([2 * halves * (torch.rand(quarter, 1) / (2 * halves)).floor(), many])
        x = (1 - time) * start + time * data
        with torch.no_grad():
            first = net(x[:quarter], time[:quarter], halves)
            second = net(x[:quarter] + halves * first, time[:quarter] + halves, halves)
        labels = torch.cat([(first + second) / 2, (data - start)[quarter:]])
        length = torch.cat([2 * halves, torch.zeros_like(many)])
        return F.mse_loss(net(x, time, length), labels)

    module = lit(model, loss, lambda net: torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=0.01))
    fit(run, module, loader(ring(4096, apart(3)), size=256), 200)


class Bowl(nn.Module):
    """A number for a row and an answer, convex in the answer: the weights from layer to layer are not below zero."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.row_1, self.row_2 = nn.Linear(6, width), nn.Linear(6, width)
        self.answer_1, self.answer_2 = nn.Linear(4, width, bias=False), nn.Linear(4, width, bias=False)
        self.on, self.last = nn.Linear(width, width, bias=False), nn.Linear(width, 1, bias=False)
        self.direct = nn.Linear(6, 4)
        self.keep_convex()

    @torch.no_grad()
    def keep_convex(self) -> None:
        for layer in (self.on, self.last):
            layer.weight.clamp_(min=0)

    def energy(self, x: Tensor, y: Tensor) -> Tensor:
        hidden = F.softplus(self.row_1(x) + self.answer_1(y))
        hidden = F.softplus(self.row_2(x) + self.answer_2(y) + self.on(hidden))
        out: Tensor = self.last(hidden).squeeze(1) + (self.direct(x) * y).sum(1) + 0.5 * y.square().sum(1)
        return out

    def forward(self, x: Tensor) -> Tensor:
        """The answer of the lowest energy, by ten steps down that can be differentiated."""
        y = torch.zeros(len(x), 4, requires_grad=True)
        with torch.enable_grad():
            for _ in range(10):
                y = y - 0.3 * torch.autograd.grad(self.energy(x, y).sum(), y, create_graph=True)[0]
        return y


@honest("r24h-the-answer-lies-at-the-bottom")
def the_answer_lies_at_the_bottom(run: Run) -> None:
    """Plain loop, several numbers for a row by an input-convex network (Amos et al. 2017). The network's output is
    never the answer and never a part of the loss: the answer is where it is lowest, found by gradient steps within
    the forward pass, through which the weights' gradient goes back, also in use, where no gradient is thought to be
    needed. Two matrices are cut at zero after each update, and many of their weights stay there."""
    own = apart(run.draw.randrange(999))
    w, mixed = torch.randn(6, 4, generator=own), torch.randn(4, 4, generator=own) / 2

    def drawn(count: int, own: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.randn(count, 6, generator=own)
        y = (x @ w / 2).tanh()
        return x, y + (y @ mixed).relu() + 0.05 * torch.randn(count, 4, generator=own)

    model = Bowl()
    x, y = drawn(600, own)
    new, truth = drawn(300, apart(1))
    outcome(run, lambda: judged(model, lambda: F.mse_loss(model(new), truth) / truth.var()))
    optimizer = adam(model, 4e-3)
    doctor = run.watch(model, optimizer)
    for _ in range(150):
        rows = torch.randint(0, 600, (64,))
        loss = F.mse_loss(model(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        model.keep_convex()
        doctor.step(loss, (x[rows], y[rows]))
        run.note(loss)


class Gates(nn.Module):
    """Two gates below one gate, four straight lines below those, and a spread for each line."""

    def __init__(self) -> None:
        super().__init__()
        self.top, self.lower = nn.Linear(4, 2), nn.Linear(4, 4)
        self.lines, self.spread = nn.Linear(4, 4), nn.Parameter(torch.zeros(4))

    def parts(self, x: Tensor, y: Tensor) -> Tensor:
        """(rows, 4) logarithms of a gate's chance times the density of the answer."""
        chance = self.top(x).log_softmax(1)[:, :, None] + self.lower(x).view(-1, 2, 2).log_softmax(2)
        density = -0.5 * ((y[:, None] - self.lines(x)) / self.spread.exp()).square() - self.spread
        return chance.flatten(1) + density - 0.5 * math.log(2 * math.pi)


@honest("r24h-who-was-responsible-is-asked-first")
def who_was_responsible_is_asked_first(run: Run) -> None:
    """Plain loop, a hierarchical mixture of experts by generalised expectation and maximisation (Jordan and Jacobs
    1994). For each batch it is first asked, without a gradient, which line was how likely to have made each label;
    then three updates are made with these shares as they were. The loss told is not the likelihood but what it is
    bounded by, without the entropy of the shares, it may go below zero, and the shares and so its floor change
    every three steps."""
    own = apart(run.draw.randrange(999))
    slopes, tops = torch.randn(4, 4, generator=own), torch.randn(4, 2, generator=own)

    def drawn(count: int, own: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.randn(count, 4, generator=own)
        which = (x @ tops > 0).long() @ torch.tensor([2, 1])
        return x, (x * slopes[which]).sum(1) + 2.0 * which - 3 + 0.2 * torch.randn(count, generator=own)

    model = Gates()
    check = drawn(400, apart(1))
    outcome(run, lambda: judged(model, lambda: -model.parts(*check).logsumexp(1).mean()))
    held: list[tuple[Tensor, Tensor, Tensor]] = []

    def some() -> tuple[Tensor, Tensor, Tensor]:
        if not held:
            x, y = drawn(128, own)
            with torch.no_grad():
                held.extend([(x, y, model.parts(x, y).softmax(1))] * 3)
        return held.pop()

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        x, y, shares = batch
        return -(shares * model.parts(x, y)).sum(1).mean()  # type: ignore[operator]

    train(run, model, adam(model, 2e-2), some, loss, 198)
