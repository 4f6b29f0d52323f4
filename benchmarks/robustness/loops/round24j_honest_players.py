"""Round 24j, honest and odd: several players or models in one loop."""

import copy
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import (
    Block,
    apart,
    examples,
    fit,
    hf_trainer,
    judged,
    lit,
    loader,
    mlp,
    outcome,
    pictures,
)
from benchmarks.robustness.loops.round6_tools import prepared
from benchmarks.robustness.loops.round7b_tools import adam, update
from torch import Tensor, nn
from torch.nn import functional as F

BITS = 6


class Correspondents(nn.Module):
    """One who writes and one who reads, both with the key, and nothing else in common."""

    def __init__(self) -> None:
        super().__init__()
        self.writes, self.reads = mlp(2 * BITS, 64, 64, BITS), mlp(2 * BITS, 64, 64, BITS)

    def forward(self, text: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """What is sent, and what is understood."""
        sent = self.writes(torch.cat([text, key], 1)).tanh()
        return sent, self.reads(torch.cat([sent, key], 1)).tanh()


def mistaken(text: Tensor, read: Tensor) -> Tensor:
    """The mean number of wrong bits in a row."""
    return (text - read).abs().sum(1).mean() / 2


@honest("r24j-two-share-a-secret-and-a-third-listens")
def two_share_a_secret_and_a_third_listens(run: Run) -> None:
    """Plain loop, three small MLPs that find a cipher (Abadi and Andersen 2016). Two of them share a key, the third
    hears what is sent and is to read it without; the two are paid for its being no better than chance and not for its
    being wrong, so that their loss has a square around half of the bits. Texts and keys are coins drawn anew in each
    step, the listener has two steps for each of theirs, and its loss is best if it goes up again to where it began."""
    two, listener = Correspondents(), mlp(BITS, 64, 64, BITS)

    def drawn(rows: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        text, key = 2.0 * torch.randint(0, 2, (2, rows, BITS), generator=own) - 1
        return text, key

    check = drawn(512, apart(1))
    outcome(run, lambda: judged(two, lambda: mistaken(check[0], two(*check)[1]) / BITS))
    of_two, of_listener = adam(two, 3e-3), adam(listener, 3e-3)
    doctor = run.watch(two, of_two)
    second = run.watch(listener, of_listener)
    for _ in range(200):
        text, key = drawn(256)
        sent, read = two(text, key)
        better = 1 - mistaken(text, listener(sent).tanh()) / (BITS / 2)
        update(run, doctor, of_two, mistaken(text, read) / BITS + better.square(), (text, key))
        for _ in range(2):
            text, key = drawn(256)
            with torch.no_grad():
                sent, _ = two(text, key)
            update(run, second, of_listener, mistaken(text, listener(sent).tanh()) / BITS, (sent, text))


def on_a_ring(count: int, own: torch.Generator | None = None) -> Tensor:
    angle = 6.2832 * torch.rand(count, generator=own)
    return torch.stack([2 * angle.cos(), 2 * angle.sin()], 1) + 0.25 * torch.randn(count, 2, generator=own)


def far_apart(a: Tensor, b: Tensor) -> Tensor:
    """The energy distance of two clouds."""
    return 2 * torch.cdist(a, b).mean() - torch.cdist(a, a).mean() - torch.cdist(b, b).mean()


class Drafter(nn.Module):
    """Begins as a broad cloud."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp(2, 48, 48, 2)

    def forward(self, noise: Tensor) -> Tensor:
        out: Tensor = noise + self.net(noise)
        return out


@honest("r24j-drafts-improved-by-an-energy")
def drafts_improved_by_an_energy(run: Run) -> None:
    """Plain loop, an energy and a generator that teach one another (CoopNets, Xie et al. 2018). The generator draws
    drafts, twenty steps of Langevin's along the energy make them better, and the better ones are labels for the very
    noise that the drafts were drawn from: it is no adversary, its squares never see an example, and it runs after a
    target that moves. The energy's loss is a difference of two means and stays around zero."""
    energy, generator = mlp(2, 48, 48, 1, act=nn.SiLU), Drafter()
    check, noise = on_a_ring(400, apart(1)), torch.randn(400, 2, generator=apart(2))
    outcome(run, lambda: judged(generator, lambda: far_apart(generator(noise), check)))
    of_energy = torch.optim.Adam(energy.parameters(), lr=2e-3, betas=(0.0, 0.9))
    of_generator = adam(generator, 5e-3)
    doctor, second = run.watch(energy, of_energy), run.watch(generator, of_generator)
    for _ in range(200):
        real, z = on_a_ring(96), torch.randn(96, 2)
        drafts = generator(z).detach()
        for _ in range(20):
            drafts.requires_grad_()
            (slope,) = torch.autograd.grad(energy(drafts).sum(), drafts)
            drafts = (drafts - 0.05 * slope + 0.07 * torch.randn_like(drafts)).detach()
        high, low = energy(real), energy(drafts)
        update(run, doctor, of_energy, high.mean() - low.mean() + 0.1 * (high.square() + low.square()).mean(), real)
        update(run, second, of_generator, F.mse_loss(generator(z), drafts), (z, drafts))


class FinderAndReader(nn.Module):
    """Two small towers that choose passages, and a T5 that reads one of them with the question."""

    def __init__(self) -> None:
        super().__init__()
        from transformers import T5Config, T5ForConditionalGeneration

        self.asks, self.offers = nn.Embedding(40, 16), nn.Embedding(40, 16)
        shape: dict[str, Any] = {"vocab_size": 40, "d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 1}
        shape |= {"num_heads": 2, "dropout_rate": 0.0, "decoder_start_token_id": 0, "pad_token_id": 0}
        self.reader = T5ForConditionalGeneration(T5Config(**shape))

    def scores(self, question: Tensor, passages: Tensor) -> Tensor:
        """(rows, passages)."""
        return torch.einsum("rd,rpd->rp", self.asks(question), self.offers(passages).mean(2))

    def says(self, question: Tensor, passages: Tensor, answer: Tensor) -> Tensor:
        """(rows, passages) log probability of the answer, each passage read by itself."""
        rows, count, _ = passages.shape
        asked = torch.cat([question[:, None, None].expand(-1, count, 1), passages], 2).flatten(0, 1)
        start = torch.zeros(rows * count, 1, dtype=torch.long)
        logits = self.reader(input_ids=asked, decoder_input_ids=start).logits[:, 0].view(rows, count, -1)
        return logits.log_softmax(2).gather(2, answer[:, None, None].expand(-1, count, 1)).squeeze(2)


def asked(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """A subject (1..10), four passages of a subject, a filler and an object (30..37), and the right one's object."""
    subjects = torch.stack([1 + torch.randperm(10, generator=own)[:4] for _ in range(count)])
    fillers = torch.randint(12, 28, (count, 4, 1), generator=own)
    objects = torch.stack([30 + torch.randperm(8, generator=own)[:4] for _ in range(count)])
    passages = torch.cat([subjects[..., None], fillers, objects[..., None]], 2)
    which = torch.randint(0, 4, (count, 1), generator=own)
    return subjects.gather(1, which).squeeze(1), passages, objects.gather(1, which).squeeze(1)


@honest("r24j-reader-tells-the-finder-what-helped")
def reader_tells_the_finder_what_helped(run: Run) -> None:
    """accelerate, retrieval for a T5 as in Atlas (Izacard et al. 2022, perplexity distillation). Nobody says which
    passage is right: the finder's labels are how likely the reader finds the answer behind each passage, and no
    gradient goes from them to the reader. The reader learns from the two passages that the finder likes best, which at
    first are mostly wrong and hold another answer; the two losses have no common floor."""
    own = apart(run.draw.randrange(999))
    model = FinderAndReader()
    question, passages, answer = asked(256, own)

    def unlikely() -> Tensor:
        best = model.scores(question, passages).argmax(1)
        chosen = passages[torch.arange(256), best][:, None]
        return -model.says(question, chosen, answer).mean()

    outcome(run, lambda: judged(model, unlikely))

    def loss(model: Any, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        question, passages, answer = batch
        scores = model.scores(question, passages)
        said = model.says(question, passages, answer)
        helped = (said.detach() / 0.5).softmax(1)
        finder = F.kl_div(scores.log_softmax(1), helped, reduction="batchmean")
        liked = scores.topk(2, 1).indices
        return finder - said.gather(1, liked).mean()

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.01)
    prepared(run, model, optimizer, loader(*asked(960, own), size=48), loss, 7)


def discs(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """Pictures of 12 by 12 with a disc of stripes on noise, and which pixels are the disc's."""
    at = 3 + 6 * torch.rand(count, 2, 1, 1, generator=own)
    grid = torch.arange(12.0)
    far = (grid[None, :, None] - at[:, 0]).square() + (grid[None, None] - at[:, 1]).square()
    inside = far < 10
    stripes = 1.2 * (1.6 * (grid[None, :, None] + grid[None, None])).sin()
    x = torch.where(inside, stripes, 0.0) + 0.6 * torch.randn(count, 12, 12, generator=own)
    return x[:, None], inside.long()


def per_pixel() -> nn.Sequential:
    def layer(a: int, b: int) -> list[nn.Module]:
        return [nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU()]

    return nn.Sequential(*layer(1, 10), *layer(10, 10), *layer(10, 10), nn.Conv2d(10, 2, 1))


@honest("r24j-two-nets-label-for-one-another")
def two_nets_label_for_one_another(run: Run) -> None:
    """Lightning, pixels by cross pseudo-supervision (Chen et al. 2021). Two nets of one form and different starts: each
    takes the other's hard guesses for labels on pictures that nobody has labelled and on those that somebody has, with
    no threshold for how sure it must be, though the guesses of the first steps are worth nothing. Six pictures have
    true labels, of which every batch sees all."""
    own = apart(run.draw.randrange(999))
    nets = nn.ModuleList([per_pixel(), per_pixel()])
    check, truth = discs(96, apart(1))
    outcome(run, lambda: judged(nets, lambda: F.cross_entropy(nets[0](check), truth)))
    few, labels = discs(6, own)

    def loss(nets: Any, batch: list[Tensor]) -> Tensor:
        seen = torch.cat([few, batch[0]])
        first, second = nets[0](seen), nets[1](seen)
        known = F.cross_entropy(first[:6], labels) + F.cross_entropy(second[:6], labels)
        crossed = F.cross_entropy(first, second.argmax(1)) + F.cross_entropy(second, first.argmax(1))
        return known + 0.5 * crossed

    module = lit(nets, loss, lambda m: torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4))
    fit(run, module, loader(discs(240, own)[0], size=12), 120)


class Actor(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = mlp(2, 32, 32, 1)

    def forward(self, state: Tensor) -> Tensor:
        out: Tensor = self.net(state).tanh()
        return out


class Critics(nn.Module):
    """Two that judge a state and an action."""

    def __init__(self) -> None:
        super().__init__()
        self.nets = nn.ModuleList(mlp(3, 48, 48, 1) for _ in range(2))

    def forward(self, state: Tensor, action: Tensor) -> Tensor:
        return torch.stack([net(torch.cat([state, action], 1)).squeeze(1) for net in self.nets])


class Gloomy:
    """Fujimoto et al. 2018: two critics of which the lower is believed, and an actor that moves half as often."""

    def __init__(self, run: Run) -> None:
        self.run, self.actor, self.critics = run, Actor(), Critics()
        self.slow = copy.deepcopy(nn.ModuleList([self.actor, self.critics])).requires_grad_(False)
        self.of_actor, self.of_critics = adam(self.actor, 3e-3), adam(self.critics, 4e-3)
        self.kept: list[tuple[Tensor, ...]] = []

    @staticmethod
    def moved(state: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """A cart with a place and a speed is pushed; it should stand at nought."""
        speed = 0.9 * state[:, 1:] + 0.4 * action
        new = torch.cat([state[:, :1] + 0.4 * speed, speed], 1)
        return new, -(new[:, 0].square() + 0.1 * new[:, 1].square() + 0.01 * action[:, 0].square())

    def cost(self) -> Tensor:
        state, total = 1.5 * torch.randn(128, 2, generator=apart(1)), torch.zeros(128)
        for _ in range(15):
            state, reward = self.moved(state, self.actor(state))
            total -= reward
        return total.mean()

    def gather(self) -> None:
        """Eight carts for a while."""
        state = 1.5 * torch.randn(8, 2)
        with torch.no_grad():
            for _ in range(6):
                action = (self.actor(state) + 0.4 * torch.randn(8, 1)).clamp(-1, 1)
                new, reward = self.moved(state, action)
                self.kept.append((state, action, reward, new))
                state = new

    def believed(self, new: Tensor, reward: Tensor) -> Tensor:
        with torch.no_grad():
            action = self.slow[0](new) + (0.2 * torch.randn(len(new), 1)).clamp(-0.4, 0.4)
            out: Tensor = reward + 0.9 * self.slow[1](new, action.clamp(-1, 1)).min(0).values
        return out

    def train(self) -> None:
        first, second = self.run.watch(self.critics, self.of_critics), self.run.watch(self.actor, self.of_actor)
        for step in range(200):
            self.gather()
            memory = [torch.cat(column) for column in zip(*self.kept[-400:], strict=True)]
            rows = torch.randint(0, len(memory[0]), (128,))
            state, action, reward, new = (column[rows] for column in memory)
            target = self.believed(new, reward)
            update(
                self.run, first, self.of_critics, F.mse_loss(self.critics(state, action), target.expand(2, -1)), rows
            )
            if step % 2 == 0:
                update(self.run, second, self.of_actor, -self.critics(state, self.actor(state))[0].mean(), state)
                with torch.no_grad():
                    for slow, fast in zip(self.slow, (self.actor, self.critics), strict=True):
                        for a, b in zip(slow.parameters(), fast.parameters(), strict=True):
                            a.lerp_(b, 0.05)


@honest("r24j-two-critics-and-the-gloomier-is-believed")
def two_critics_and_the_gloomier_is_believed(run: Run) -> None:
    """A class of its own, a pushed cart by TD3 (Fujimoto et al. 2018). Both critics have one target, the lower guess of
    two slow copies at an action with noise on it; the actor climbs the first critic alone, every second step, by a loss
    that is a negative value and grows as long as costs are expected. Its gradient passes through critics that are not
    to move by it. The memory fills while it is learned from."""
    player = Gloomy(run)
    outcome(run, lambda: judged(player.actor, player.cost))
    player.train()


class Member(nn.Module):
    """One GRU for all members of a team, told which of them it is; it acts after its last reading."""

    def __init__(self) -> None:
        super().__init__()
        self.core, self.head = nn.GRU(4 + 3, 24, batch_first=True), nn.Linear(24, 4)

    def forward(self, seen: Tensor) -> Tensor:
        """(rows, members, times, 4) to (rows, members, 4) log probabilities."""
        rows, members, times, _ = seen.shape
        who = torch.eye(3).view(1, 3, 1, 3).expand(rows, -1, times, -1)
        state = self.core(torch.cat([seen, who], 3).flatten(0, 1))[1].squeeze(0)
        out: Tensor = self.head(state).log_softmax(1).view(rows, members, 4)
        return out


class Overseer(nn.Module):
    """Sees all readings and what the others did; says of each action of one member what the team would get."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp(36 + 12 + 3, 64, 4)

    def forward(self, seen: Tensor, acts: Tensor) -> Tensor:
        rows = len(seen)
        others = F.one_hot(acts, 4).float()[:, None] * (1 - torch.eye(3))[None, :, :, None]
        all_seen = seen.flatten(1)[:, None].expand(-1, 3, -1)
        out: Tensor = self.net(torch.cat([all_seen, others.flatten(2), torch.eye(3).expand(rows, 3, 3)], 2))
        return out


@honest("r24j-compared-with-what-else-it-might-have-done")
def compared_with_what_else_it_might_have_done(run: Run) -> None:
    """Plain loop, a team of three with recurrent policies by counterfactual baselines (COMA, Foerster et al. 2018). The
    team has one reward; what a member's act is worth is the critic's guess less the mean of its guesses for all the
    acts that the member might have chosen, the others as they were. So the advantages of a batch have no mean of zero,
    are not standardised, and the policy's loss says nothing of how well it plays. The
    critic has three steps for each of the policy's."""
    policy, critic = Member(), Overseer()
    wanted = torch.stack([torch.randperm(4, generator=apart(run.draw.randrange(999))) for _ in range(3)])

    def drawn(rows: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        first = torch.randint(0, 4, (rows, 3), generator=own)
        seen = 0.1 * torch.randn(rows, 3, 3, 4, generator=own)
        seen[:, :, 0] += F.one_hot(first, 4)
        return seen, wanted[torch.arange(3), first]

    check, truth = drawn(512, apart(1))
    outcome(run, lambda: judged(policy, lambda: 1 - policy(check).exp().gather(2, truth[..., None]).mean()))
    of_policy, of_critic = adam(policy, 1e-2), adam(critic, 1e-2)
    doctor, second = run.watch(policy, of_policy), run.watch(critic, of_critic)
    for _ in range(200):
        seen, right = drawn(128)
        said = policy(seen)
        acts = torch.distributions.Categorical(logits=said.detach()).sample()
        reward = (acts == right).float().sum(1)
        for _ in range(3):
            guesses = critic(seen, acts)
            mine = guesses.gather(2, acts[..., None]).squeeze(2)
            update(run, second, of_critic, F.mse_loss(mine, reward[:, None].expand(-1, 3)), (seen, acts))
        worth = (mine - (said.exp() * guesses).sum(2)).detach()
        chosen = said.gather(2, acts[..., None]).squeeze(2)
        update(run, doctor, of_policy, -(worth * chosen).mean() + 0.1 * (said.exp() * said).sum(2).mean(), seen)


class ElsewhereInThePicture(nn.Module):
    """A vision transformer that sees some patches, a narrow one that guesses the rest, and the first one's average."""

    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Parameter(0.1 * torch.randn(16, 24))
        self.enter, self.block, self.norm = nn.Linear(4, 24), Block(24, causal=False), nn.LayerNorm(24)
        self.narrow, self.guess, self.leave = nn.Linear(24, 16), Block(16, causal=False), nn.Linear(16, 24)
        self.asked = nn.Parameter(0.1 * torch.randn(16, 16))
        parts = nn.ModuleList([self.enter, self.block, self.norm])
        self.slow = copy.deepcopy(parts).requires_grad_(False)

    @staticmethod
    def through(parts: Any, x: Tensor, places: Tensor) -> Tensor:
        enter, block, norm = parts
        out: Tensor = norm(block(enter(x) + places))
        return out

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """The same columns or rows are hidden in all pictures of a batch."""
        patches = 4 * F.unfold(x, 2, stride=2).transpose(1, 2) - 2
        start, across = int(torch.randint(0, 3, ())), bool(torch.randint(0, 2, ()))
        grid = torch.arange(16).view(4, 4)
        hidden = (grid[start : start + 2] if across else grid[:, start : start + 2]).flatten()
        shown = torch.tensor([i for i in range(16) if i not in hidden.tolist()])
        with torch.no_grad():
            target = F.layer_norm(self.through(self.slow, patches, self.places), (24,))[:, hidden]
        context = self.narrow(self.through((self.enter, self.block, self.norm), patches[:, shown], self.places[shown]))
        both = torch.cat([context, self.asked[hidden].expand(len(x), -1, -1)], 1)
        guessed = self.leave(self.guess(both)[:, len(shown) :])
        return {"loss": F.smooth_l1_loss(guessed, target), "guessed": guessed, "target": target}

    @torch.no_grad()
    def follow(self, share: float) -> None:
        for slow, fast in zip(self.slow, (self.enter, self.block, self.norm), strict=True):
            for a, b in zip(slow.parameters(), fast.parameters(), strict=True):
                a.lerp_(b, share)


@honest("r24j-guesses-what-a-slower-self-sees-elsewhere")
def guesses_what_a_slower_self_sees_elsewhere(run: Run) -> None:
    """transformers' Trainer, pictures without labels by a joint-embedding predictor (I-JEPA, Assran et al. 2023). What
    is guessed are no pixels but the states of the model's own average, which move with it, so that the loss may go up
    while it learns; a state that says nothing would be guessed best, and only the average and a narrow predictor keep
    it from that. A third of the weights never gets a gradient and moves all the same."""
    from transformers import TrainerCallback

    model = ElsewhereInThePicture()
    check, _ = pictures(256, 3, own=apart(1))

    def unexplained() -> Tensor:
        with torch.random.fork_rng():
            torch.manual_seed(4)
            out = [model(check) for _ in range(8)]
        errors = torch.stack([F.mse_loss(o["guessed"], o["target"]) for o in out])
        spreads = torch.stack([o["target"].var(0).mean() for o in out])
        return errors.mean() / spreads.mean()

    outcome(run, lambda: judged(model, unexplained))

    class Follows(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            model.follow(0.03)

    x, _ = pictures(512, 3)
    options = {"per_device_train_batch_size": 32, "learning_rate": 4e-3, "lr_scheduler_type": "cosine"}
    trainer = hf_trainer(run, model, examples(x=x), 200, **options)
    trainer.add_callback(Follows())
    trainer.train()
