"""Round 21i, honest and odd: gradients thinned, sampled, masked, guessed, mended, chosen by lot, and turned."""

import itertools
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import (
    Block,
    Decoder,
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
    number_outcome,
    outcome,
    pictures,
    table,
)
from benchmarks.robustness.loops.round6_tools import classify, prepared
from torch import Tensor, nn
from torch.nn import functional as F


class Largest(torch.autograd.Function):
    """Nothing on the way there; on the way back each row's largest entries alone."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, kept: int) -> Tensor:
        ctx.kept = kept
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        at = gradient.abs().topk(ctx.kept, -1).indices
        return torch.zeros_like(gradient).scatter(-1, at, gradient.gather(-1, at)), None


class Sparse(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = Largest.apply(super().forward(x), 8)
        return out


@honest("r21i-only-the-largest-go-back")
def only_the_largest_go_back(run: Run) -> None:
    """Accelerate, a perceptron with two hidden layers names pictures by meProp (Sun et al. 2017). Of the 128 entries of
    each row's gradient at a hidden layer the eight largest go on and all others are set to zero, so that the gradient
    is biased and most units of a layer learn nothing from a given row; only the last layer has its whole gradient."""
    own = apart(run.draw.randrange(999))
    net = nn.Sequential(nn.Flatten(), Sparse(64, 128), nn.ReLU(), Sparse(128, 128), nn.ReLU(), nn.Linear(128, 4))
    (x, y), (x_kept, y_kept) = pictures(640, own=own), pictures(256, own=apart(1))
    class_outcome(run, net, (2 * x_kept - 1, y_kept))
    data = loader(2 * x - 1, y, size=32)
    prepared(run, net, torch.optim.Adam(net.parameters(), lr=2e-3), data, classify, 6)


class FromHalf(torch.autograd.Function):
    """A matrix product that keeps half of its input rows for the weights' gradient, drawn by their lengths."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        chance = rows.norm(dim=1) + 1e-6
        chance = chance / chance.sum()
        drawn = torch.multinomial(chance, (len(rows) + 1) // 2, replacement=True)
        kept = rows[drawn] / (chance[drawn] * len(drawn))[:, None]
        ctx.save_for_backward(kept, drawn, weight)
        return x @ weight.T

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        kept, drawn, weight = ctx.saved_tensors
        return gradient @ weight, gradient.reshape(-1, gradient.shape[-1])[drawn].T @ kept


class HalfStored(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = FromHalf.apply(x, self.weight) if self.training else F.linear(x, self.weight)
        return out


@honest("r21i-half-of-the-rows-for-the-weights")
def half_of_the_rows_for_the_weights(run: Run) -> None:
    """Transformers' Trainer, a T5 that answers three words by a table, with sampled matrix products (Adelman et al.
    2021; Liu et al. 2023). Each projection stores but half of its input's places, drawn with replacement by their
    lengths and weighed by their chance: the weights' gradients are right on average and noisy, what goes further back
    is exact."""
    from transformers import T5Config, T5ForConditionalGeneration

    settings: dict[str, Any] = {"vocab_size": 16, "d_model": 32, "d_kv": 16, "d_ff": 64, "num_heads": 2}
    settings |= {"num_layers": 1, "dropout_rate": 0.0, "pad_token_id": 0, "decoder_start_token_id": 0}
    model = T5ForConditionalGeneration(T5Config(**settings))
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.Linear) and name != "lm_head":
            stored = HalfStored(module.in_features, module.out_features, bias=False)
            stored.weight = module.weight
            model.set_submodule(name, stored)
    own = apart(run.draw.randrange(999))
    answers = torch.cat([torch.zeros(4, dtype=torch.long), torch.randperm(12, generator=own) + 4])

    def rows(count: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.randint(4, 16, (count, 3), generator=draw)
        return x, answers[x]

    x, y = rows(128, apart(1))
    outcome(run, lambda: judged(model, lambda: model(input_ids=x, labels=y).loss))
    asked, told = rows(1120, own)
    hf_trainer(run, model, examples(input_ids=asked, labels=told), 70, learning_rate=5e-3).train()


class SecureSum:
    """Clients who show nobody their gradient: each pair adds and takes away one random mask (Bonawitz et al. 2017)."""

    size, grain = 2**32, 2**16

    def __init__(self, model: nn.Module, clients: int, seed: int) -> None:
        self.model, self.clients = model, clients
        pairs = itertools.combinations(range(clients), 2)
        self.secrets = {pair: apart(seed + 100 * pair[0] + pair[1]) for pair in pairs}
        self.count = sum(p.numel() for p in model.parameters())

    def masks(self) -> list[Tensor]:
        out = [torch.zeros(self.count, dtype=torch.long) for _ in range(self.clients)]
        for (a, b), secret in self.secrets.items():
            mask = torch.randint(0, self.size, (self.count,), generator=secret)
            out[a], out[b] = (out[a] + mask) % self.size, (out[b] - mask) % self.size
        return out

    def sent(self, mask: Tensor) -> Tensor:
        gradient = torch.cat([p.grad.flatten() for p in self.model.parameters() if p.grad is not None])
        whole = (gradient.clamp(-100, 100) * self.grain).round().long()
        return (whole + mask) % self.size

    def received(self, letters: list[Tensor]) -> None:
        total = torch.stack(letters).sum(0) % self.size
        total = torch.where(total >= self.size // 2, total - self.size, total)
        mean = total.float() / self.grain / self.clients
        parts = mean.split([p.numel() for p in self.model.parameters()])
        for p, part in zip(self.model.parameters(), parts, strict=True):
            p.grad = part.view_as(p)


@honest("r21i-masks-that-cancel")
def masks_that_cancel(run: Run) -> None:
    """A class of one's own, convolutions by four clients under secure aggregation (Bonawitz et al. 2017). What each
    client sends is its gradient in whole numbers plus masks of uniform noise modulo 2^32, of no use by itself; the
    masks of each pair cancel in the sum, which is the gradient that the server writes and steps by."""
    model = cnn(norm=False)
    class_outcome(run, model, pictures(256, own=apart(1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    doctor = run.watch(model, optimizer)
    together = SecureSum(model, 4, run.draw.randrange(9999))
    for _ in range(80):
        letters, losses, batches = [], [], []
        for mask in together.masks():
            batch = pictures(16)
            optimizer.zero_grad()
            loss = classify(model, batch)
            loss.backward()
            letters.append(together.sent(mask))
            losses.append(loss.detach())
            batches.append(batch)
        together.received(letters)
        optimizer.step()
        mean = torch.stack(losses).mean()
        doctor.step(mean, batches)
        run.note(mean)


class Jittered(nn.Module):
    """A perceptron whose units can be disturbed; what came in and which noise was added is remembered."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(6, 24), nn.Linear(24, 1)])
        self.noise = 0.0
        self.seen: list[tuple[Tensor, Tensor]] = []

    def forward(self, x: Tensor) -> Tensor:
        self.seen = []
        for index, layer in enumerate(self.layers):
            shake = torch.randn(len(x), layer.out_features)
            self.seen.append((x, shake))
            x = layer(x) + self.noise * shake
            x = x.tanh() if index == 0 else x
        return x


@honest("r21i-noise-in-the-units-and-what-came-of-it")
def noise_in_the_units_and_what_came_of_it(run: Run) -> None:
    """Plain loop, a perceptron learns a number by node perturbation (Werfel et al. 2005). Nothing is differentiated:
    every batch passes once clean and once with small noise at each unit, and the gradient that is written is a unit's
    noise times its input times the change of the row's loss. The loss has no graph."""
    seed = run.draw.randrange(999)
    model = Jittered()
    number_outcome(run, model, table(400, seed, apart(1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
    doctor = run.watch(model, optimizer)
    for _ in range(200):
        x, y = table(256, seed)
        with torch.no_grad():
            model.noise = 0.0
            clean = (model(x)[:, 0] - y).square()
            model.noise = 0.02
            change = ((model(x)[:, 0] - y).square() - clean) / model.noise
            for layer, (incoming, shake) in zip(model.layers, model.seen, strict=True):
                felt = change[:, None] * shake / len(x)
                layer.weight.grad, layer.bias.grad = felt.T @ incoming, felt.sum(0)
            model.noise = 0.0
        optimizer.step()
        doctor.step(clean.mean(), (x, y))
        run.note(clean.mean())


class CompensatedAdamW(torch.optim.Optimizer):
    """AdamW for weights in bfloat16 without a copy in single precision: what rounding loses is kept and added later
    (Kahan summation; Zamirai et al. 2020, and the library optimi)."""

    def __init__(self, parameters: Any, lr: float, decay: float = 0.01) -> None:
        super().__init__(parameters, {"lr": lr, "betas": (0.9, 0.99), "eps": 1e-6, "weight_decay": decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        for group in self.param_groups:
            a, b = group["betas"]
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state |= {"step": 0, "exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
                    state["lost"] = torch.zeros_like(p)
                state["step"] += 1
                gradient = p.grad.float()
                first = state["exp_avg"].float().lerp_(gradient, 1 - a)
                second = state["exp_avg_sq"].float().lerp_(gradient.square(), 1 - b)
                state["exp_avg"].copy_(first)
                state["exp_avg_sq"].copy_(second)
                first, second = first / (1 - a ** state["step"]), second / (1 - b ** state["step"])
                change = first / (second.sqrt() + group["eps"]) + group["weight_decay"] * p.float()
                state["lost"].sub_(group["lr"] * change)
                before = p.clone()
                p.add_(state["lost"])
                state["lost"].add_(before - p)


@honest("r21i-what-rounding-lost-is-kept")
def what_rounding_lost_is_kept(run: Run) -> None:
    """Plain loop, a GPT with weights, gradients, and moments all in bfloat16 and no master copy, as optimi does it
    (Zamirai et al. 2020). Many steps are too short to change a weight; a second tensor sums up what rounding lost,
    until it is enough to be seen."""
    language = Language(run.draw.randrange(999))
    model = Decoder(12, layers=2).bfloat16()

    def loss_of(rows: Tensor) -> Tensor:
        return F.cross_entropy(model(rows[:, :-1]).float().flatten(0, 1), rows[:, 1:].flatten())

    check = language.rows(96, 24, apart(901))
    outcome(run, lambda: judged(model, lambda: loss_of(check)))
    optimizer = CompensatedAdamW(model.parameters(), lr=3e-3)
    doctor = run.watch(model, optimizer)
    for _ in range(100):
        rows = language.rows(16, 24)
        optimizer.zero_grad()
        loss = loss_of(rows)
        loss.backward()
        optimizer.step()
        doctor.step(loss, rows)
        run.note(loss)


class OneSign(torch.autograd.Function):
    """A copy for each task; where their gradients differ in sign, one sign is drawn and the others are dropped."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, tasks: int) -> tuple[Tensor, ...]:
        return tuple(x.clone() for _ in range(tasks))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        all_of_them = torch.stack(gradients)
        purity = (1 + all_of_them.sum(0) / all_of_them.abs().sum(0).clamp_min(1e-20)) / 2
        positive = torch.rand_like(purity) < purity
        return (all_of_them * ((all_of_them > 0) == positive)).sum(0), None


class ThreeTasks(nn.Module):
    """A small BERT; one vector a row, from which its class, its size, and the kind of its first word are told."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(16, 32), nn.Embedding(16, 32)
        self.block = Block(32, causal=False)
        self.heads = nn.ModuleList([nn.Linear(32, 3), nn.Linear(32, 1), nn.Linear(32, 3)])

    def forward(self, ids: Tensor, keep: Tensor) -> list[Tensor]:
        x = self.block(self.tokens(ids) + self.places(torch.arange(ids.shape[1])), keep)
        share = keep.float()[..., None]
        x = (x * share).sum(1) / share.sum(1)
        return [head(part) for head, part in zip(self.heads, OneSign.apply(x, 3), strict=True)]

    def loss(self, batch: Any) -> Tensor:
        ids, keep, y = batch
        label, size, first = self(ids, keep)
        wanted = keep.sum(1) / 4 - 2
        return F.cross_entropy(label, y) + F.mse_loss(size[:, 0], wanted) + F.cross_entropy(first, (ids[:, 0] - 1) // 5)


@honest("r21i-one-sign-by-lot")
def one_sign_by_lot(run: Run) -> None:
    """Lightning, one encoder for three tasks with gradients dropped by sign (GradDrop, Chen et al. 2020). At the shared
    vector each entry draws whether it rises or falls, the likelier the more the tasks agree, and takes the gradients of
    that sign alone, so that the encoder never has the gradient of the sum that is the loss."""
    net = ThreeTasks()
    check = documents(256, apart(1))
    outcome(run, lambda: judged(net, lambda: net.loss(check)))
    data = loader(*documents(960, apart(run.draw.randrange(999))), size=32)
    fit(run, lit(net, ThreeTasks.loss, lambda m: torch.optim.AdamW(m.parameters(), lr=4e-3)), data, 110)


class Amplitude(nn.Module):
    """The logarithm of a wave function of spins, as a restricted Boltzmann machine (Carleo and Troyer 2017)."""

    def __init__(self, spins: int = 8) -> None:
        super().__init__()
        self.own, self.hidden = nn.Parameter(0.02 * torch.randn(spins)), nn.Linear(spins, spins)
        nn.init.normal_(self.hidden.weight, std=0.05)
        nn.init.normal_(self.hidden.bias, std=0.02)

    def forward(self, s: Tensor) -> Tensor:
        return s @ self.own + self.hidden(s).cosh().log().sum(-1)


@honest("r21i-turned-by-the-spread-of-its-slopes")
def turned_by_the_spread_of_its_slopes(run: Run) -> None:
    """Plain loop, the lowest energy of eight spins in a field by a Boltzmann machine with stochastic reconfiguration
    (Sorella 1998; Carleo and Troyer 2017). There are no data; states are drawn by the machine itself, the loss is an
    energy far below zero, and the gradient that is written is the energy's, turned by the inverse of the covariance of
    all states' own slopes."""
    field = 0.7 + 0.6 * run.draw.random()
    states = torch.tensor(list(itertools.product([-1.0, 1.0], repeat=8)))
    flipped = states[:, None] * (1 - 2 * torch.eye(8))
    code = 2 ** torch.arange(7, -1, -1)
    neighbours = ((flipped + 1) / 2).long() @ code
    bonds = (states * states.roll(1, 1)).sum(1)
    matrix = torch.diag(-bonds)
    matrix[torch.arange(256)[:, None], neighbours] -= field
    ground = float(torch.linalg.eigvalsh(matrix.double())[0])
    model = Amplitude()

    def local(logs: Tensor) -> Tensor:
        return -bonds - field * (logs[neighbours] - logs[:, None]).exp().sum(1)

    def energy() -> Tensor:
        logs = model(states)
        return ((2 * logs).softmax(0) * local(logs)).sum()

    outcome(run, lambda: judged(model, lambda: (energy() - ground) / 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    doctor = run.watch(model, optimizer)
    names = [name for name, _ in model.named_parameters()]

    def one(weights: dict[str, Tensor], s: Tensor) -> Tensor:
        out: Tensor = torch.func.functional_call(model, weights, (s[None],))[0]
        return out

    slopes = torch.func.vmap(torch.func.grad(one), (None, 0))
    for _ in range(120):
        with torch.no_grad():
            logs = model(states)
            drawn = torch.multinomial((2 * logs).softmax(0), 400, replacement=True)
            local_energy = local(logs)[drawn]
        weights = {name: p.detach() for name, p in model.named_parameters()}
        each = slopes(weights, states[drawn])
        rows = torch.cat([each[name].flatten(1) for name in names], 1)
        rows = rows - rows.mean(0)
        force = 2 * rows.T @ (local_energy - local_energy.mean()) / len(rows)
        spread = rows.T @ rows / len(rows) + 0.01 * torch.eye(rows.shape[1])
        turned = torch.linalg.solve(spread, force).split([weights[name].numel() for name in names])
        for p, part in zip(model.parameters(), turned, strict=True):
            p.grad = part.view_as(p)
        optimizer.step()
        doctor.step(local_energy.mean(), states[drawn])
        run.note(local_energy.mean())
