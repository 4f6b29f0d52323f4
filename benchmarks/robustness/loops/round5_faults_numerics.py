"""Mistakes of numbers and their formats."""

import torch
from benchmarks.robustness.loops.case import Run, fault
from benchmarks.robustness.loops.round5_tools import (
    Decoder,
    Language,
    apart,
    class_outcome,
    cnn,
    documents,
    judged,
    language_outcome,
    mlp,
    next_loss,
    outcome,
    pictures,
    train,
)
from torch import Tensor, nn
from torch.nn import functional as F


@fault(
    "r5-weights-in-bfloat16",
    "numerics and precision",
    (
        r"bfloat16|bf16|half|16.?bit|precision",
        r"round|vanish|too small|smaller than|below|spacing|swallow|lost|unchanged|do(es)? not (move|change)|no effect|stall|absorb|master",
    ),
)
def weights_in_bfloat16(run: Run, wrong: bool) -> None:
    """The whole model is put into bfloat16, weights too, and trained at a small rate: most updates round away. The
    twin keeps the weights in float32."""
    language = Language(run.draw.randrange(999))
    model = Decoder(12)
    language_outcome(run, model, language)
    if wrong:
        model.to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-4)
    train(run, model, optimizer, lambda: language.rows(16, 20), next_loss, 110)


@fault(
    "r5-clip-before-unscale",
    "numerics and precision",
    (r"scal", r"clip|norm"),
)
def clip_before_unscale(run: Run, wrong: bool) -> None:
    """Mixed precision with a GradScaler: gradients are clipped while they still carry the scale, so that the update is
    that much too small. The twin unscales first."""
    seed = run.draw.randrange(999)
    model = cnn()
    class_outcome(run, model, pictures(256, seed, own=apart(1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**14)
    doctor = run.watch(model, optimizer)
    for _ in range(60):
        x, y = pictures(24, seed)
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        if not wrong:
            scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        doctor.step(loss, (x, y))
        run.note(loss)


@fault(
    "r5-scaled-but-own-step",
    "numerics and precision",
    (r"scal", r"unscal|never (divided|removed)|not (divided|removed|undone)|still|too large|times|step"),
)
def scaled_but_own_step(run: Run, wrong: bool) -> None:
    """Half of a GradScaler: the loss is scaled, but optimizer.step() is called instead of scaler.step(optimizer), so
    that plain SGD gets gradients 1024 times too large."""
    seed = run.draw.randrange(999)
    model = cnn()
    class_outcome(run, model, pictures(256, seed, own=apart(1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    doctor = run.watch(model, optimizer)
    for _ in range(60):
        x, y = pictures(24, seed)
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        if wrong:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
        doctor.step(loss, (x, y))
        run.note(loss)


@fault(
    "r5-root-of-zero",
    "numerics and precision",
    (r"nan|not finite|non.?finite|inf", r"sqrt|root|norm|distance|zero|identical|same|pow|backward|gradient"),
)
def root_of_zero(run: Run, wrong: bool) -> None:
    """Contrastive pairs with a hand-written Euclidean distance: sqrt has no gradient at zero, and now and then a pair
    is one picture twice. The twin adds a small number under the root."""
    seed = run.draw.randrange(999)
    model = nn.Sequential(nn.Flatten(), mlp(64, 32, 8))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    def loss(net: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        a, b, same = batch
        square = ((net(a) - net(b)) ** 2).sum(1)
        far = square.sqrt() if wrong else (square + 1e-8).sqrt()
        return (same * far**2 + (1 - same) * F.relu(2 - far) ** 2).mean()

    def batch(own: torch.Generator | None = None, twice: bool = True) -> tuple[Tensor, ...]:
        a, c = pictures(24, seed, own=own)
        b, d = pictures(24, seed, own=own)
        if twice and torch.rand((), generator=own) < 0.1:
            b[0], d[0] = a[0], c[0]
        return a, b, (c == d).float()

    check = batch(apart(3), twice=False)
    outcome(run, lambda: judged(model, lambda: loss(model, check)))
    train(run, model, optimizer, batch, loss, 90)


class Reader(nn.Module):
    """One head of attention over words, then the mean over them."""

    def __init__(self, careful: bool) -> None:
        super().__init__()
        self.careful = careful
        self.tokens = nn.Embedding(16, 24)
        self.q, self.k, self.v = nn.Linear(24, 24), nn.Linear(24, 24), nn.Linear(24, 24)
        self.head = nn.Linear(24, 3)

    def forward(self, ids: Tensor, keep: Tensor) -> Tensor:
        x = self.tokens(ids)
        scores = self.q(x) @ self.k(x).transpose(1, 2) / 24**0.5
        scores = scores.masked_fill(~keep[:, None], -1e4 if self.careful else -torch.inf)
        mixed = scores.softmax(-1) @ self.v(x)
        out: Tensor = self.head((mixed * keep[..., None]).sum(1) / keep.sum(1, keepdim=True).clamp(min=1))
        return out


@fault(
    "r5-row-without-keys",
    "numerics and precision",
    (r"nan|not finite|non.?finite", r"mask|pad|empty|softmax|attention|key|row"),
)
def row_without_keys(run: Run, wrong: bool) -> None:
    """Some documents are empty after cleaning. Their attention is -inf everywhere, and the softmax of such a row is
    NaN. The twin masks with a large finite number."""
    model = Reader(careful=not wrong)
    x, keep, y = documents(256, apart(4))
    class_outcome(run, model, (x, keep, y))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def batch() -> tuple[Tensor, Tensor, Tensor]:
        x, keep, y = documents(16)
        empty = torch.rand(16) < 0.01
        return x.masked_fill(empty[:, None], 0), keep & ~empty[:, None], y

    train(run, model, optimizer, batch, lambda m, b: F.cross_entropy(m(b[0], b[1]), b[2]), 90)


@fault(
    "r5-softmax-by-hand",
    "numerics and precision",
    (r"nan|not finite|non.?finite|overflow|inf", r"exp|softmax|overflow|logit|log"),
)
def softmax_by_hand(run: Run, wrong: bool) -> None:
    """A softmax written as exp(x) / exp(x).sum() without the maximum taken off: inf / inf as soon as a logit passes
    88. The twin calls log_softmax."""
    seed = run.draw.randrange(999)
    centres = torch.randn(5, 6, generator=apart(seed))
    model = mlp(6, 32, 5)

    def rows(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        y = torch.randint(0, 5, (count,), generator=own)
        size = 10 * torch.exp(0.9 * torch.randn(count, 1, generator=own))
        return size * (centres[y] + 0.4 * torch.randn(count, 6, generator=own)), y

    def loss(net: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        logits = net(batch[0])
        if wrong:
            chance = logits.exp() / logits.exp().sum(1, keepdim=True)
            return -(chance.gather(1, batch[1][:, None]) + 1e-12).log().mean()
        return F.cross_entropy(logits, batch[1])

    class_outcome(run, model, rows(256, apart(5)))
    train(run, model, torch.optim.Adam(model.parameters(), lr=5e-3), lambda: rows(32), loss, 120)


class Taste(nn.Module):
    """Who likes what: an embedding of users and one of items."""

    def __init__(self, users: int, items: int) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(users, 16), nn.Embedding(items, 16)
        self.top = mlp(32, 32, 1)

    def forward(self, pairs: Tensor) -> Tensor:
        user, item = pairs.long().unbind(1)
        out: Tensor = self.top(torch.cat([self.users(user), self.items(item)], 1))
        return out


@fault(
    "r5-ids-in-bfloat16",
    "numerics and precision",
    (
        r"bfloat16|bf16|half|precision|float|dtype",
        r"\bid|index|indices|integer|collid|merge|never (looked|used|drawn|seen)|same row|round|embedding",
    ),
)
def ids_in_bfloat16(run: Run, wrong: bool) -> None:
    """The whole batch is cast to bfloat16, ids of users and items too, which cannot hold whole numbers above 256 one
    by one: neighbours share a row. The twin casts only the rating."""
    own = apart(run.draw.randrange(999))
    mood, worth = torch.randn(40, generator=own), 2 * torch.randn(600, generator=own)
    model = Taste(40, 640)

    def batch(own: torch.Generator | None = None, cast: bool = wrong) -> tuple[Tensor, Tensor]:
        n = 512 if own else 128
        pairs = torch.stack([torch.randint(0, 40, (n,), generator=own), torch.randint(0, 600, (n,), generator=own)], 1)
        rating = mood[pairs[:, 0]] + worth[pairs[:, 1]]
        return pairs.to(torch.bfloat16) if cast else pairs, rating

    check = batch(apart(6), wrong)
    outcome(run, lambda: judged(model, lambda: F.mse_loss(model(check[0]).flatten(), check[1])))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
    train(run, model, optimizer, batch, lambda m, b: F.mse_loss(m(b[0]).flatten(), b[1]), 140)


class HalfNorm(nn.Module):
    """A root mean square norm."""

    def __init__(self, width: int, half: bool) -> None:
        super().__init__()
        self.weight, self.half_ = nn.Parameter(torch.ones(width)), half

    def forward(self, x: Tensor) -> Tensor:
        x = x.half() if self.half_ else x
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)).float()


@fault(
    "r5-squares-in-half",
    "numerics and precision",
    (
        r"float16|fp16|half|precision|overflow|inf",
        r"norm|square|overflow|zero|large|65504|range|dead|vanish",
    ),
)
def squares_in_half(run: Run, wrong: bool) -> None:
    """A norm computes its squares in float16: beyond 256 they overflow, one over infinity is zero, and loud rows go
    silently through as zeros. The twin computes it in float32."""
    seed = run.draw.randrange(999)
    centres = torch.randn(4, 8, generator=apart(seed))
    model = nn.Sequential(HalfNorm(8, wrong), mlp(8, 32, 4))

    def rows(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        y = torch.randint(0, 4, (count,), generator=own)
        loud = 200 * torch.exp(1.2 * torch.randn(count, 1, generator=own)).clamp(max=200)
        return loud * (centres[y] + 0.3 * torch.randn(count, 8, generator=own)), y

    class_outcome(run, model, rows(256, apart(7)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    train(run, model, optimizer, lambda: rows(32), lambda m, b: F.cross_entropy(m(b[0]), b[1]), 100)
