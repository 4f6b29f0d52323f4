"""Round 20b, honest and odd: players, judges, policies, and networks that label for each other."""

import copy
import itertools
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import apart, class_outcome, cnn, judged, loader, mlp, outcome, pictures
from torch import Tensor, nn
from torch.nn import functional as F


@honest("r20b-one-backward-for-both")
def one_backward_for_both(run: Run) -> None:
    """accelerate's loop, pictures by free adversarial training (Shafahi et al. 2019). Each batch is taken four times in
    a row, and one backward pass serves both players: the weights go down the gradient, the perturbation up. It is no
    parameter, is carried over to the next batch with what it has learned, and is clipped to a box by hand."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState

    AcceleratorState._reset_state(True)
    GradientState._reset_state()
    engine = Accelerator(cpu=True)
    net = cnn()
    class_outcome(run, net, pictures(256, 7, own=apart(1)))
    data = loader(*pictures(1280, 7, own=apart(run.draw.randrange(999))), size=32)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    model, optimizer, data = engine.prepare(net, optimizer, data)
    doctor = run.watch(model, optimizer)
    shift = torch.zeros(32, 1, 8, 8)
    for x, y in data:
        for _ in range(4):
            shift.requires_grad_()
            loss = F.cross_entropy(model(x + shift), y)
            optimizer.zero_grad()
            engine.backward(loss)
            shift = (shift.detach() + 0.1 * shift.grad.sign()).clamp(-0.1, 0.1)  # type: ignore[union-attr]
            optimizer.step()
            doctor.step(loss, (x, y))
            run.note(loss)


@honest("r20b-a-judge-three-steps-ahead")
def a_judge_three_steps_ahead(run: Run) -> None:
    """Plain loop, points on a ring by an unrolled adversarial network (Metz et al. 2017). The generator's gradient goes
    through three steps that the judge would take and does not: they are taken on a copy in a dictionary, and the
    judge's own weights make one step of Adam. The copy's steps are plain ones with another rate than the judge's."""
    own = apart(run.draw.randrange(999))

    def points(count: int, own: torch.Generator) -> Tensor:
        angle = 6.2832 * torch.randint(0, 8, (count,), generator=own) / 8
        return torch.stack([angle.cos(), angle.sin()], 1) * 2 + 0.1 * torch.randn(count, 2, generator=own)

    def far(a: Tensor, b: Tensor) -> Tensor:
        return 2 * torch.cdist(a, b).mean() - torch.cdist(a, a).mean() - torch.cdist(b, b).mean()

    maker, judge = mlp(8, 48, 48, 2), mlp(2, 48, 48, 1, act=nn.Tanh)
    check, noise = points(400, apart(1)), torch.randn(400, 8, generator=apart(2))
    outcome(run, lambda: judged(maker, lambda: far(maker(noise), check)))
    making = torch.optim.Adam(maker.parameters(), lr=2e-3, betas=(0.5, 0.999))
    judging = torch.optim.Adam(judge.parameters(), lr=2e-3, betas=(0.5, 0.999))
    first, second = run.watch(maker, making), run.watch(judge, judging)

    def verdict(weights: dict[str, Tensor], real: Tensor, made: Tensor) -> Tensor:
        said = torch.func.functional_call(judge, weights, (torch.cat([real, made]),)).flatten()
        return F.binary_cross_entropy_with_logits(said, (torch.arange(len(said)) < len(real)).float())

    for _ in range(200):
        real, z = points(64, own), torch.randn(64, 8)
        made = maker(z)
        loss = verdict(dict(judge.named_parameters()), real, made.detach())
        judging.zero_grad()
        loss.backward()
        judging.step()
        second.step(loss, real)
        ahead = {name: p.detach().clone().requires_grad_() for name, p in judge.named_parameters()}
        for _ in range(3):
            slopes = torch.autograd.grad(verdict(ahead, real, made), list(ahead.values()), create_graph=True)
            ahead = {name: p - 0.1 * g for (name, p), g in zip(ahead.items(), slopes, strict=True)}
        said = torch.func.functional_call(judge, ahead, (made,)).flatten()
        fooled = F.binary_cross_entropy_with_logits(said, torch.ones(64))
        making.zero_grad()
        fooled.backward()
        making.step()
        first.step(fooled, z)
        run.note(fooled)


class Player(nn.Module):
    """How many to take from a heap, and whether the one to move will win."""

    def __init__(self, size: int = 21) -> None:
        super().__init__()
        self.size = size
        self.body, self.move, self.win = mlp(size + 1, 48, 48), nn.Linear(48, 3), nn.Linear(48, 1)

    def forward(self, heaps: Tensor) -> tuple[Tensor, Tensor]:
        seen = self.body(F.one_hot(heaps, self.size + 1).float()).relu()
        legal = heaps[:, None] >= torch.arange(1, 4)
        return self.move(seen).masked_fill(~legal, -1e4), self.win(seen).flatten().tanh()


@torch.no_grad()
def searched(model: Player, heaps: Tensor, depth: int = 2) -> Tensor:
    """The value of each heap for the one to move, by looking ahead."""
    if depth == 0:
        return torch.where(heaps == 0, -1.0, model(heaps)[1])
    return torch.where(heaps == 0, -1.0, after_each(model, heaps, depth).amax(1))


def after_each(model: Player, heaps: Tensor, depth: int) -> Tensor:
    moves = []
    for taken in (1, 2, 3):
        value = -searched(model, (heaps - taken).clamp(min=0), depth - 1)
        moves.append(torch.where(heaps >= taken, value, -50.0))
    return torch.stack(moves, 1)


@honest("r20b-taught-by-its-own-search")
def taught_by_its_own_search(run: Run) -> None:
    """Plain loop, a game of heaps by expert iteration (Anthony et al. 2017; Silver et al. 2017). The player looks two
    moves ahead with its own guess of who will win, plays by that against itself, and learns to move as the search did
    and to foresee how the game ended. Targets get better with the player, and the loss of the moves need not fall."""
    model = Player()
    heaps = torch.arange(1, 22)
    winning = heaps[heaps % 4 != 0]
    outcome(run, lambda: judged(model, lambda: (model(winning)[0].argmax(1) + 1 != winning % 4).float().mean()))
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3, weight_decay=1e-5)
    doctor = run.watch(model, optimizer)
    rows: list[tuple[Tensor, Tensor, Tensor]] = []
    for _ in range(80):
        heap = torch.randint(1, 22, (12,))
        played = []
        while bool((heap > 0).any()):
            going = heap > 0
            chance = (4 * after_each(model, heap, 2)).softmax(1)
            chance[~going] = 1 / 3
            taken = (
                torch.multinomial(0.8 * chance + 0.2 * (heap[:, None] >= torch.arange(1, 4)) / 3 + 1e-9, 1)[:, 0] + 1
            )
            played.append((heap, chance, going))
            heap = torch.where(going, (heap - taken).clamp(min=0), heap)
        value = -torch.ones(12)
        for heap, chance, going in reversed(played):
            value = torch.where(going, -value, value)
            rows.append((heap[going], chance[going], value[going]))
        rows = rows[-60:]
        heap, chance, value = (torch.cat(part) for part in zip(*rows, strict=True))
        at = torch.randint(0, len(heap), (64,))
        scores, win = model(heap[at])
        loss = -(chance[at] * scores.log_softmax(1)).sum(1).mean() + F.mse_loss(win, value[at])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        doctor.step(loss, (heap[at], chance[at], value[at]))
        run.note(loss)


class Mover(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = mlp(1, 32, 32, 2)

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """A sampled action, its log density, and the action without chance."""
        mean, spread = self.net(state).chunk(2, 1)
        spread = spread.clamp(-4, 1).exp()
        raw = mean + spread * torch.randn_like(mean)
        density = torch.distributions.Normal(mean, spread).log_prob(raw) - 2 * (0.6931 - raw - F.softplus(-2 * raw))
        return raw.tanh(), density, mean.tanh()


@honest("r20b-the-price-of-entropy-is-learned")
def the_price_of_entropy_is_learned(run: Run) -> None:
    """Plain loop, a point is kept at its place by a soft actor and critic (Haarnoja et al. 2018). Three optimizers: two
    critics follow the smaller of two slow copies, the actor climbs, and the price of entropy is a single number whose
    loss is below and above zero in turn, so that it settles where the entropy is as wished, not where a loss ends."""
    actor, critic = Mover(), nn.ModuleList(mlp(2, 32, 32, 1) for _ in range(2))
    slow = copy.deepcopy(critic).requires_grad_(False)
    price = nn.Parameter(torch.zeros(()))
    goal = 0.4

    def moved(state: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        after = (state + 0.3 * action).clamp(-1, 1)
        return after, -(after - goal).abs()

    def cost() -> Tensor:
        state, total = torch.linspace(-1, 1, 41)[:, None], torch.zeros(41, 1)
        for _ in range(8):
            state, reward = moved(state, actor(state)[2])
            total = total - reward
        return total.mean()

    outcome(run, lambda: judged(actor, cost))
    acting = torch.optim.Adam(actor.parameters(), lr=3e-3)
    judging = torch.optim.Adam(critic.parameters(), lr=3e-3)
    pricing = torch.optim.Adam([price], lr=3e-3)
    first, second = run.watch(actor, acting), run.watch(critic, judging)
    for _ in range(200):
        state = 2 * torch.rand(64, 1) - 1
        with torch.no_grad():
            action = actor(state)[0]
            after, reward = moved(state, action)
            next_action, density, _ = actor(after)
            ahead = torch.min(*(one(torch.cat([after, next_action], 1)) for one in slow))
            target = 5 * reward + 0.8 * (ahead - price.exp() * density)
        batch = (state, action, reward, after)
        pairs = torch.cat([state, action], 1)
        wrong = F.mse_loss(critic[0](pairs), target) + F.mse_loss(critic[1](pairs), target)
        judging.zero_grad()
        wrong.backward()
        judging.step()
        second.step(wrong, batch)
        action, density, _ = actor(state)
        worth = torch.min(*(one(torch.cat([state, action], 1)) for one in critic))
        loss = (price.exp().detach() * density - worth).mean()
        acting.zero_grad()
        loss.backward(inputs=list(actor.parameters()))
        acting.step()
        first.step(loss, batch)
        pricing.zero_grad()
        (-price * (density.detach() - 1.0).mean()).backward()
        pricing.step()
        with torch.no_grad():
            for a, b in zip(slow.parameters(), critic.parameters(), strict=True):
                a.lerp_(b, 0.02)
        run.note(loss)


PLACES = ("", "cb", "c", "b")  # what was done before: the first player is asked at the first two


def asked(card: int, place: str) -> int:
    return 4 * card + PLACES.index(place)


def value(cards: tuple[int, int], done: str, bets: Any) -> float:
    """What the first player wins at Kuhn's poker from here on, given each player's chance of betting."""
    if done in ("cc", "bb", "cbb"):
        return (1 if done == "cc" else 2) * (1 if cards[0] > cards[1] else -1)
    if done in ("bc", "cbc"):
        return 1 if done == "bc" else -1
    player = len(done) % 2
    bet = float(bets[player][asked(cards[player], done)])
    out = bet * value(cards, done + "b", bets) if bet else 0.0
    return out + ((1 - bet) * value(cards, done + "c", bets) if bet < 1 else 0.0)


DEALS = tuple(itertools.permutations(range(3), 2))


def exploited(bets: list[float]) -> float:
    """How much the best answers to both players win together."""
    total = 0.0
    for player, places in ((0, ("", "cb")), (1, ("c", "b"))):
        sign = 1 - 2 * player
        for card in range(3):
            deals = [d for d in DEALS if d[player] == card]
            best = -99.0
            for pure in itertools.product((0.0, 1.0), repeat=2):
                answer = list(bets)
                for place, choice in zip(places, pure, strict=True):
                    answer[asked(card, place)] = choice
                both = (answer, bets) if player == 0 else (bets, answer)
                best = max(best, sum(sign * value(d, "", both) for d in deals) / 6)
            total += best
    return total


@honest("r20b-regrets-kept-and-learned-anew")
def regrets_kept_and_learned_anew(run: Run) -> None:
    """Plain loop, Kuhn's poker by deep counterfactual regrets (Brown et al. 2019; Steinberger 2019). In each of forty
    rounds a network is drawn anew and fitted within eight steps to all regrets so far, later ones weighing more; what
    is played is the mean of all networks. The loss starts again each round and grows, since old regrets contradict."""
    played: list[Tensor] = []
    facts = torch.cat([torch.eye(3).repeat_interleave(4, 0), torch.eye(4).repeat(3, 1)], 1)

    def mean_play() -> list[float]:
        if not played:
            return [0.5] * 12
        ages = torch.arange(1, len(played) + 1).float()
        return [float(p) for p in (torch.stack(played) * ages[:, None]).sum(0) / ages.sum()]

    outcome(run, lambda: exploited(mean_play()))
    regrets: list[tuple[int, Tensor, float]] = []
    bets = torch.full((12,), 0.5)
    for age in range(1, 41):
        for cards in DEALS:
            for player, done in ((0, ""), (1, "c"), (1, "b"), (0, "cb")):
                reach = 1.0
                if done:
                    other = bets[asked(cards[1 - player], "" if player else "c")]
                    reach = float(1 - other) if done == "c" else float(other)
                sign = 1 - 2 * player
                each = [sign * value(cards, done + move, (bets, bets)) for move in "cb"]
                bet = float(bets[asked(cards[player], done)])
                gain = torch.tensor(each) - (bet * each[1] + (1 - bet) * each[0])
                regrets.append((asked(cards[player], done), reach * gain, float(age)))
        x = facts[[at for at, _, _ in regrets]]
        y, ages = torch.stack([gain for _, gain, _ in regrets]), torch.tensor([a for _, _, a in regrets])
        model = mlp(7, 24, 2)
        optimizer = torch.optim.Adam(model.parameters(), lr=5e-2)
        doctor = run.watch(model, optimizer)
        for _ in range(8):
            loss = (ages[:, None] / ages.mean() * (model(x) - y).square()).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            doctor.step(loss, (x, y))
            run.note(loss)
        with torch.no_grad():
            worth = model(facts)
            gains = worth.clamp(min=0)
            best = worth.argmax(1).float()
            bets = torch.where(gains.sum(1) > 0, gains[:, 1] / gains.sum(1).clamp(min=1e-9), best)
        played.append(bets)


class OnGraph(nn.Module):
    """Two rounds of means over neighbours."""

    def __init__(self, columns: int, classes: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(columns, 16), nn.Linear(16, classes)
        self.drop = nn.Dropout(0.3)

    def forward(self, x: Tensor, share: Tensor) -> Tensor:
        out: Tensor = self.second(share @ self.drop(self.first(share @ x).relu()))
        return out


@honest("r20b-in-turn-on-one-graph")
def in_turn_on_one_graph(run: Run) -> None:
    """Plain loop, kinds of the nodes of one graph by two networks in turn (GMNN, Qu et al. 2019). One reads the nodes'
    features, the other only the kinds of their neighbours as the first believes them; each learns from what the other
    says of all nodes, with sixteen true labels. A phase lasts twenty steps, and the other network rests meanwhile."""
    own = apart(run.draw.randrange(999))
    kind = torch.randint(0, 4, (240,), generator=own)
    together = torch.where(kind[:, None] == kind, 0.08, 0.012)
    edges = (torch.rand(240, 240, generator=own) < together).float().triu(1)
    edges = edges + edges.T
    share = edges + torch.eye(240)
    share = share / share.sum(1, keepdim=True)
    neighbours = edges / edges.sum(1, keepdim=True).clamp(min=1)
    features = torch.randn(4, 12, generator=own)[kind] + 2.0 * torch.randn(240, 12, generator=own)
    known = torch.cat([torch.where(kind == k)[0][:4] for k in range(4)])
    hidden = torch.ones(240, dtype=torch.bool).index_fill(0, known, False)
    reader, neighbour = OnGraph(12, 4), OnGraph(4, 4)

    def missed() -> Tensor:
        return (reader(features, share)[hidden].argmax(1) != kind[hidden]).float().mean()

    outcome(run, lambda: judged(reader, missed))
    optimizers = [torch.optim.RMSprop(m.parameters(), lr=5e-3, weight_decay=5e-4) for m in (reader, neighbour)]
    doctors = [run.watch(m, o) for m, o in zip((reader, neighbour), optimizers, strict=True)]

    def beliefs(model: nn.Module, x: Tensor, matrix: Tensor) -> Tensor:
        model.eval()
        with torch.no_grad():
            said = model(x, matrix).softmax(1)
        model.train()
        said[known] = F.one_hot(kind[known], 4).float()
        return said

    for phase in range(8):
        which = phase % 2
        if which == 0:
            model, x, matrix = reader, features, share
            target = beliefs(neighbour, beliefs(reader, features, share), neighbours) if phase else None
        else:
            target = beliefs(reader, features, share)
            model, x, matrix = neighbour, target, neighbours
        for _ in range(20):
            said = model(x, matrix).log_softmax(1)
            loss = F.nll_loss(said[known], kind[known]) if target is None else -(target * said).sum(1).mean()
            optimizers[which].zero_grad()
            loss.backward()
            optimizers[which].step()
            doctors[which].step(loss, (x, matrix))
            run.note(loss)
