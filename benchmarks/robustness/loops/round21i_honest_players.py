"""Round 21i, honest and odd: several who learn, against each other, with each other, or one through the other."""

import math

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import Language, apart, judged, mlp, outcome
from benchmarks.robustness.loops.round7b_tools import update
from torch import Tensor, nn
from torch.nn import functional as F


class Habit(nn.Module):
    """How likely one is to cooperate: at first, and after each of the four ways in which the last round went."""

    def __init__(self) -> None:
        super().__init__()
        self.logits = nn.Parameter(0.5 * torch.randn(5))

    def forward(self) -> Tensor:
        return self.logits.sigmoid()


def values(mine: Tensor, yours: Tensor, discount: float = 0.96) -> Tensor:
    """What a prisoner's dilemma that goes on is worth to both, exactly, by round."""
    yours = yours[[0, 1, 3, 2, 4]]  # the same rounds as the other sees them
    chances = torch.stack([mine * yours, mine * (1 - yours), (1 - mine) * yours, (1 - mine) * (1 - yours)], 1)
    visits = torch.linalg.solve((torch.eye(4) - discount * chances[1:]).T, chances[0])
    rewards = torch.tensor([[-1.0, -3.0, 0.0, -2.0], [-1.0, 0.0, -3.0, -2.0]])
    return (1 - discount) * rewards @ visits


@honest("r21i-counts-on-the-others-step")
def counts_on_the_others_step(run: Run) -> None:
    """Plain loop, two who play the prisoner's dilemma again and again with opponent-learning awareness (LOLA, Foerster
    et al. 2018). Each goes along its value after the other's next step, differentiated through that step, so that a
    gradient holds a second derivative and is not the one of what the player earns now. No data, exact values."""
    players = Habit(), Habit()

    def years() -> float:
        with torch.no_grad():
            return -float(values(players[0](), players[1]()).mean())

    outcome(run, years)
    optimizers = [torch.optim.SGD(p.parameters(), lr=1.0) for p in players]
    doctors = [run.watch(p, o) for p, o in zip(players, optimizers, strict=True)]
    ahead = 25.0
    for _ in range(150):
        losses = []
        for me, (player, other, optimizer) in enumerate(zip(players, players[::-1], optimizers, strict=True)):
            theirs = other.logits.detach().requires_grad_()
            their_value = values(player(), theirs.sigmoid())[1]
            step = torch.autograd.grad(their_value, theirs, create_graph=True)[0]
            loss = -values(player(), (theirs + ahead * step).sigmoid())[0]
            optimizer.zero_grad()
            player.logits.grad = 25 * torch.autograd.grad(loss, player.logits)[0]
            losses.append((me, loss.detach()))
        for me, loss in losses:
            optimizers[me].step()
            doctors[me].step(loss)
            run.note(loss)


class Moves(nn.Module):
    """How likely the first of two moves is in each of six games; all begin at a half."""

    def __init__(self) -> None:
        super().__init__()
        self.games = nn.ParameterList(nn.Parameter(torch.zeros(())) for _ in range(6))

    def forward(self) -> Tensor:
        first = torch.stack(list(self.games)).sigmoid()
        return torch.stack([first, 1 - first], 1)


@honest("r21i-faster-when-losing")
def faster_when_losing(run: Run) -> None:
    """Plain loop, two players of six games of matching pennies with uneven stakes, by the rule to learn fast when
    losing and slowly when winning (Bowling and Veloso 2002). A player's rate for each game is written anew before every
    step, ten times as high while it earns less than its average play would; one's gain is the other's loss, and both
    losses go round and round and end near the games' value."""
    own = apart(run.draw.randrange(999))
    stakes = 1 + 3 * torch.rand(6, 2, 2, generator=own)
    stakes = stakes * torch.tensor([[1.0, -1.0], [-1.0, 1.0]])
    row, column = Moves(), Moves()

    def earned(a: Tensor, b: Tensor) -> Tensor:
        return (a[:, None] @ stakes @ b[:, :, None])[:, 0, 0]

    def exploited() -> float:
        with torch.no_grad():
            a, b = row(), column()
            best_a = (stakes @ b[:, :, None])[:, :, 0].amax(1)
            worst_b = (a[:, None] @ stakes)[:, 0].amin(1)
            return float((best_a - worst_b).mean())

    outcome(run, exploited)
    players = row, column
    optimizers = [torch.optim.SGD([{"params": [game]} for game in p.games], lr=0.05) for p in players]
    doctors = [run.watch(p, o) for p, o in zip(players, optimizers, strict=True)]
    averages = [p().detach().clone() for p in players]
    for step in range(200):
        gains = earned(row(), column())
        with torch.no_grad():
            better = gains > earned(averages[0], column()), -gains > -earned(row(), averages[1])
        losses = -gains.sum(), gains.sum()
        slopes = [
            torch.autograd.grad(loss, list(p.games), retain_graph=True) for loss, p in zip(losses, players, strict=True)
        ]
        for k, (player, optimizer) in enumerate(zip(players, optimizers, strict=True)):
            for group, wins, slope in zip(optimizer.param_groups, better[k].tolist(), slopes[k], strict=True):
                group["lr"] = 0.05 if wins else 0.5
                group["params"][0].grad = slope
            optimizer.step()
            averages[k].lerp_(player().detach(), 1 / (step + 2))
            doctors[k].step(losses[k].detach())
        run.note(losses[0])


def moons(count: int, turned: float, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """Two half circles that reach into each other, in noise, turned about their middle."""
    y = torch.randint(0, 2, (count,), generator=own)
    angle = math.pi * torch.rand(count, generator=own)
    sign = 1 - 2 * y
    x = torch.stack([sign * angle.cos() - 0.5 + y, sign * angle.sin() - 0.25 + 0.5 * y], 1)
    x = x + 0.08 * torch.randn(count, 2, generator=own)
    turn = torch.tensor([[math.cos(turned), -math.sin(turned)], [math.sin(turned), math.cos(turned)]])
    return x @ turn.T, y


@honest("r21i-two-judges-who-disagree-on-purpose")
def two_judges_who_disagree_on_purpose(run: Run) -> None:
    """Plain loop, from one pair of moons to a turned one without labels by the greatest discrepancy of two classifiers
    (Saito et al. 2018). By turns all learn the labelled moons; the classifiers alone, to differ as much as they can on
    the others, where their loss is often below zero; and four times the body alone, to let them agree. Three losses
    for two optimizers."""
    body, heads = mlp(2, 32, 32), nn.ModuleList([mlp(32, 16, 2), mlp(32, 16, 2)])
    x_kept, y_kept = moons(400, 0.35, apart(1))

    def both(x: Tensor) -> list[Tensor]:
        h = body(x).relu()
        return [head(h) for head in heads]

    def named(batch: tuple[Tensor, Tensor]) -> Tensor:
        return sum((F.cross_entropy(logits, batch[1]) for logits in both(batch[0])), torch.zeros(()))

    def apart_on(x: Tensor) -> Tensor:
        a, b = (logits.softmax(1) for logits in both(x))
        return (a - b).abs().mean()

    outcome(run, lambda: judged(body, lambda: named((x_kept, y_kept))))
    for_body = torch.optim.Adam(body.parameters(), lr=3e-3)
    for_heads = torch.optim.Adam(heads.parameters(), lr=3e-3)
    of_body, of_heads = run.watch(body, for_body), run.watch(heads, for_heads)

    def clear(loss: Tensor) -> None:
        for_body.zero_grad()
        for_heads.zero_grad()
        loss.backward()

    for _ in range(120):
        labelled, other = moons(64, 0.0), moons(64, 0.35)[0]
        loss = named(labelled)
        clear(loss)
        for_body.step()
        for_heads.step()
        of_body.step(loss, labelled)
        of_heads.step(loss, labelled)
        run.note(loss)
        loss = named(labelled) - apart_on(other)
        clear(loss)
        for_heads.step()
        of_heads.step(loss, (labelled, other))
        for _ in range(4):
            loss = apart_on(other)
            clear(loss)
            for_body.step()
            of_body.step(loss, other)


class Auction(nn.Module):
    """Two bids for one thing: the chance that each has it, and what each pays, never more than it bid."""

    def __init__(self) -> None:
        super().__init__()
        self.given, self.paid = mlp(2, 32, 3, act=nn.Tanh), mlp(2, 32, 2, act=nn.Tanh)

    def forward(self, bids: Tensor) -> tuple[Tensor, Tensor]:
        chance = self.given(bids).softmax(-1)[..., :2]
        return chance, self.paid(bids).sigmoid() * chance * bids


@honest("r21i-nobody-gains-by-lying")
def nobody_gains_by_lying(run: Run) -> None:
    """Plain loop, an auction that is itself learned (RegretNet, Dütting et al. 2019). In each batch lies are improved
    by ten steps of ascent, and the loss is minus what the seller earns plus what bidders could gain by the lies, at a
    price that rises as long as they gain anything; it starts below zero and grows as the price does."""
    model = Auction()
    check = torch.rand(256, 2, generator=apart(1))

    def gains(truth: Tensor, lies: Tensor) -> Tensor:
        """What each bidder would have more by its lie, the other being honest: (..., 2)."""

        def kept(bids: Tensor, who: int) -> Tensor:
            chance, paid = model(bids)
            return (truth * chance - paid)[..., who]

        told = [torch.stack([lies[..., 0], truth[..., 1].expand_as(lies[..., 0])], -1)]
        told.append(torch.stack([truth[..., 0].expand_as(lies[..., 1]), lies[..., 1]], -1))
        return torch.stack([kept(told[who], who) - kept(truth, who) for who in (0, 1)], -1)

    def judge() -> Tensor:
        grid = torch.linspace(0, 1, 21)[:, None, None].expand(21, 256, 2)
        regret = gains(check, grid).amax(0).clamp_min(0).mean(0).sum()
        return 5 * regret - model(check)[1].sum(1).mean()

    outcome(run, lambda: judged(model, judge))
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    doctor = run.watch(model, optimizer)
    price, strict = torch.full((2,), 5.0), 5.0
    for step in range(120):
        truth = torch.rand(128, 2)
        lies = torch.rand(128, 2)
        for _ in range(10):
            lies.requires_grad_()
            lies = (lies + 0.2 * torch.autograd.grad(gains(truth, lies).sum(), lies)[0]).detach().clamp(0, 1)
        regret = gains(truth, lies).clamp_min(0).mean(0)
        loss = (price * regret).sum() + strict / 2 * regret.square().sum() - model(truth)[1].sum(1).mean()
        update(run, doctor, optimizer, loss, truth)
        if step % 15 == 14:
            price, strict = price + strict * regret.detach(), strict + 2


class Talker(nn.Module):
    """A recurrent language model that also says which states it went through."""

    def __init__(self, words: int = 12) -> None:
        super().__init__()
        self.tokens, self.cell = nn.Embedding(words, 16), nn.GRUCell(16, 32)
        self.head = nn.Linear(32, words)

    def forward(self, rows: Tensor, free_after: int | None = None) -> tuple[Tensor, Tensor]:
        """Along given words, or from some place on along its own; the scores and the states behind them."""
        state, word = rows.new_zeros(len(rows), 32, dtype=torch.float), rows[:, 0]
        scores, states = [], []
        for t in range(rows.shape[1] - 1):
            state = self.cell(self.tokens(word), state)
            scores.append(self.head(state))
            states.append(state)
            word = rows[:, t + 1]
            if free_after is not None and t >= free_after:
                word = torch.multinomial(scores[-1].detach().softmax(-1), 1)[:, 0]
        return torch.stack(scores, 1), torch.stack(states, 1)


class Ear(nn.Module):
    """Whether states come from words that were given."""

    def __init__(self) -> None:
        super().__init__()
        self.core, self.head = nn.GRU(32, 24, batch_first=True, bidirectional=True), nn.Linear(48, 1)

    def forward(self, states: Tensor) -> Tensor:
        out: Tensor = self.head(self.core(states)[0].mean(1))[:, 0]
        return out


@honest("r21i-forced-and-free-made-alike")
def forced_and_free_made_alike(run: Run) -> None:
    """Plain loop, a recurrent language model by professor forcing (Lamb et al. 2016). A judge tells states along given
    words from states along the model's own words, and the model learns the next word and also to deceive the judge.
    The judge rests while it is right nearly always, and is not listened to while it guesses, so that terms of the loss
    come and go."""
    language = Language(run.draw.randrange(999))
    talker, ear = Talker(), Ear()
    check = language.rows(128, 14, apart(1))

    def unlikely(rows: Tensor) -> Tensor:
        return F.cross_entropy(talker(rows)[0].flatten(0, 1), rows[:, 1:].flatten())

    outcome(run, lambda: judged(talker, lambda: unlikely(check)))
    for_talker = torch.optim.Adam(talker.parameters(), lr=8e-3)
    for_ear = torch.optim.Adam(ear.parameters(), lr=2e-3)
    of_talker, of_ear = run.watch(talker, for_talker), run.watch(ear, for_ear)
    for _ in range(110):
        rows = language.rows(24, 14)
        scores, forced = talker(rows)
        free = talker(rows, free_after=2)[1]
        real, made = ear(forced.detach()), ear(free.detach())
        right = float(((real > 0).float().mean() + (made < 0).float().mean()) / 2)
        heard = (F.softplus(-real) + F.softplus(made)).mean()
        if right < 0.99:
            for_ear.zero_grad()
            heard.backward()
            for_ear.step()
            of_ear.step(heard.detach(), (forced.detach(), free.detach()))
        loss = F.cross_entropy(scores.flatten(0, 1), rows[:, 1:].flatten())
        if right > 0.6:
            loss = loss + 0.2 * F.softplus(-ear(free)).mean()
        update(run, of_talker, for_talker, loss, rows)
