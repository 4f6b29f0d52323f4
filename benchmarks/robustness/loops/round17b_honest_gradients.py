"""Round 17b, honest and odd: where gradients come from and what is done to them."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import (
    Block,
    Decoder,
    Language,
    apart,
    documents,
    judged,
    loader,
    outcome,
    tiny_bert,
)
from benchmarks.robustness.loops.round7b_tools import adam, text_outcome
from benchmarks.robustness.loops.round12b_parts import TopicAndOrigin, reviews
from torch import Tensor, nn
from torch.nn import functional as F


class Greedy(nn.Module):
    """A GPT each of whose blocks has a head of its own and gets the last one's output without its graph."""

    def __init__(self, words: int, width: int = 32, layers: int = 3) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(words, width), nn.Embedding(32, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.heads = nn.ModuleList(nn.Sequential(nn.LayerNorm(width), nn.Linear(width, words)) for _ in range(layers))

    def forward(self, ids: Tensor) -> list[Tensor]:
        x, out = self.tokens(ids) + self.places(torch.arange(ids.shape[1])), []
        for i, (block, head) in enumerate(zip(self.blocks, self.heads, strict=True)):
            x = block(x if i == 0 else x.detach())
            out.append(head(x))
        return out


@honest("r17b-each-block-for-itself")
def each_block_for_itself(run: Run) -> None:
    """Plain loop, a small GPT by greedy learning of layers (Belilovsky et al. 2019), so that blocks could learn on
    machines of their own. Between any two blocks the graph is cut and each has a head and a loss of its own: nothing
    of the last loss, by which the model is judged, reaches the first two blocks, and the sum is three times as high."""
    language = Language(run.draw.randrange(999))
    model = Greedy(12)

    def losses(rows: Tensor) -> list[Tensor]:
        return [F.cross_entropy(x.flatten(0, 1), rows[:, 1:].flatten()) for x in model(rows[:, :-1])]

    check = language.rows(96, 24, apart(901))
    outcome(run, lambda: judged(model, lambda: losses(check)[-1]))
    optimizer = adam(model)
    doctor = run.watch(model, optimizer)
    for _ in range(110):
        rows = language.rows(12, 24)
        optimizer.zero_grad()
        loss = torch.stack(losses(rows)).sum()
        loss.backward()
        optimizer.step()
        doctor.step(loss, rows)
        run.note(loss)


@honest("r17b-shortest-of-all-mixtures")
def shortest_of_all_mixtures(run: Run) -> None:
    """Plain loop, topic and origin of a text by one encoder with MGDA (Sener and Koltun 2018). The two losses are
    weighed anew in each step so that the sum of their gradients in the encoder is as short as can be: weights are
    between zero and one, jump from step to step, and the loss with the larger gradient counts least."""
    model = TopicAndOrigin(1.0)
    shared = [p for name, p in model.named_parameters() if not name.startswith(("topic", "origin"))]

    def losses(batch: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        topic, origin = model(batch[0], batch[1])
        return F.cross_entropy(topic, batch[2]), F.cross_entropy(origin, batch[3])

    check = reviews(200, apart(1))
    outcome(run, lambda: judged(model, lambda: torch.stack(losses(check)).sum()))
    optimizer = adam(model)
    doctor = run.watch(model, optimizer)
    draws = apart(run.draw.randrange(999))
    for _ in range(140):
        batch = reviews(24, draws)
        optimizer.zero_grad()
        parts = losses(batch)
        one, two = (
            torch.cat([g.flatten() for g in torch.autograd.grad(part, shared, retain_graph=True)]) for part in parts
        )
        share = float(((two - one) @ two / (one - two).square().sum().clamp_min(1e-12)).clamp(0, 1))
        loss = share * parts[0] + (1 - share) * parts[1]
        loss.backward()
        optimizer.step()
        doctor.step(loss, batch)
        run.note(loss)


class Diagonal(nn.Module):
    """A linear recurrence with a rate of forgetting for each channel, and a small net that reads its state."""

    def __init__(self, words: int, width: int = 48) -> None:
        super().__init__()
        self.forget = nn.Parameter(torch.linspace(-3.0, 3.0, width))
        self.enter = nn.Parameter(torch.randn(words, width))
        self.read = nn.Sequential(nn.Linear(width, 48), nn.ReLU(), nn.Linear(48, words))

    def forward(self, rows: Tensor) -> Tensor:
        state, out = torch.zeros(len(rows), len(self.forget)), []
        for word in rows.T:
            state = self.forget.sigmoid() * state + self.enter[word]
            out.append(self.read(state))
        return torch.stack(out, 1)


@honest("r17b-no-way-back-through-time")
def no_way_back_through_time(run: Run) -> None:
    """Plain loop, a diagonal linear recurrence that learns online by RTRL (Zucchet et al. 2023). How the state depends
    on the weights is carried forward beside it, backward() reaches no further than this moment's state, `.grad` of the
    recurrence is written by hand, and an update follows every single word of the eight texts that are being read."""
    language = Language(run.draw.randrange(999))
    model = Diagonal(12)
    text_outcome(run, model, language)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    doctor = run.watch(model, optimizer)
    for _ in range(16):
        rows = language.rows(8, 25)
        state, by_forget, by_enter = torch.zeros(8, 48), torch.zeros(8, 48), torch.zeros(8, 12, 48)
        for word, following in zip(rows.T[:-1], rows.T[1:], strict=True):
            keep = model.forget.detach().sigmoid()
            by_forget = keep * by_forget + keep * (1 - keep) * state
            by_enter = keep * by_enter + F.one_hot(word, 12)[..., None]
            state = (keep * state + model.enter.detach()[word]).requires_grad_()
            optimizer.zero_grad()
            loss = F.cross_entropy(model.read(state), following)
            loss.backward()
            assert state.grad is not None
            model.forget.grad = (state.grad * by_forget).sum(0)
            model.enter.grad = (state.grad[:, None] * by_enter).sum(0)
            state = state.detach()
            optimizer.step()
            doctor.step(loss, (word, following))
            run.note(loss)


@honest("r17b-words-moved-and-both-gradients-kept")
def words_moved_and_both_gradients_kept(run: Run) -> None:
    """accelerate, BERT names the topics of texts with FGM (Miyato et al. 2017), as many a Kaggle winner does. After
    backward the table of words is moved up its own gradient, a second backward pass there adds to what is already in
    `.grad`, the table is put back, and one step is made of both gradients, about twice as long as the loss's."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState

    net = tiny_bert()
    x, keep, y = documents(512, apart(run.draw.randrange(999)))
    check = documents(200, apart(2))

    def loss_of(model: Any, batch: Any) -> Tensor:
        out: Tensor = model(input_ids=batch[0], attention_mask=batch[1].long(), labels=batch[2]).loss
        return out

    outcome(run, lambda: judged(net, lambda: loss_of(net, check)))
    AcceleratorState._reset_state(True)
    GradientState._reset_state()
    engine = Accelerator(cpu=True)
    model, optimizer, data = engine.prepare(net, torch.optim.AdamW(net.parameters(), lr=1e-3), loader(x, keep, y))
    table = net.get_input_embeddings().weight
    doctor = run.watch(model, optimizer)
    for _ in range(3):
        for batch in data:
            loss = loss_of(model, batch)
            engine.backward(loss)
            with torch.no_grad():
                before = table.clone()
                table.add_(table.grad / table.grad.norm().clamp_min(1e-12), alpha=0.3)
            engine.backward(loss_of(model, batch))
            with torch.no_grad():
                table.copy_(before)
            optimizer.step()
            optimizer.zero_grad()
            doctor.step(loss, batch)
            run.note(loss)


class Characters(nn.Module):
    """A plain recurrent net from one-hot letters to letters."""

    def __init__(self, words: int, hidden: int = 64) -> None:
        super().__init__()
        self.words, self.core, self.head = words, nn.RNN(words, hidden, batch_first=True), nn.Linear(hidden, words)
        for name, p in self.named_parameters():
            if "bias" in name:
                nn.init.zeros_(p)
            else:
                nn.init.normal_(p, std=0.01)

    def forward(self, ids: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        out, state = self.core(F.one_hot(ids, self.words).float(), state)
        return self.head(out), state


@honest("r17b-one-stream-summed-and-cut")
def one_stream_summed_and_cut(run: Run) -> None:
    """Plain loop, letters as in Karpathy's hundred lines (min-char-rnn), all weights within about 0.03 of zero at
    first. A batch is 25 letters of one stream that is read on, the loss is their sum and begins at 62, each entry of
    a gradient is cut at five by itself, and Adagrad at 0.1 makes every step smaller than the last, for ever."""
    language = Language(run.draw.randrange(999), sharp=2.4)
    model = Characters(12)
    check = language.rows(64, 26, apart(1))
    outcome(
        run,
        lambda: judged(model, lambda: F.cross_entropy(model(check[:, :-1])[0].flatten(0, 1), check[:, 1:].flatten())),
    )
    stream = language.rows(1, 25 * 300 + 1)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
    doctor = run.watch(model, optimizer)
    state = None
    for start in range(0, 25 * 300, 25):
        x, y = stream[:, start : start + 25], stream[:, start + 1 : start + 26]
        logits, state = model(x, state)
        state = state.detach()
        loss = F.cross_entropy(logits[0], y[0], reduction="sum")
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_value_(model.parameters(), 5.0)
        optimizer.step()
        doctor.step(loss, (x, y))
        run.note(loss)


class Sophia(torch.optim.Optimizer):
    """Liu et al. 2023: momentum over a running diagonal of the Gauss-Newton matrix, each entry cut at one."""

    def __init__(self, parameters: Any, lr: float, rho: float = 0.3) -> None:
        super().__init__(parameters, {"lr": lr, "rho": rho})

    @torch.no_grad()
    def see_curvature(self, rows: int) -> None:
        """From gradients of a mean over `rows` labels that the model drew itself."""
        for p in (p for group in self.param_groups for p in group["params"]):
            state = self.state[p]
            state["h"] = 0.9 * state.get("h", torch.zeros_like(p)) + 0.1 * rows * p.grad.square()

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                state["m"] = torch.lerp(state.get("m", torch.zeros_like(p)), p.grad, 0.05)
                p.sub_(group["lr"] * (state["m"] / (group["rho"] * state["h"] + 1e-15)).clamp(-1, 1))


@honest("r17b-labels-drawn-from-itself")
def labels_drawn_from_itself(run: Run) -> None:
    """Plain loop, a small GPT with Sophia-G (Liu et al. 2023). In every tenth step there is a second pass whose labels
    are drawn from what the model itself says and not from the text, because that is how curvature is estimated; its
    gradients are squared and thrown away, and most entries of the update are cut to plus or minus the rate."""
    language = Language(run.draw.randrange(999))
    model = Decoder(12, length=24)
    text_outcome(run, model, language)
    optimizer = Sophia(model.parameters(), lr=3e-3)
    doctor = run.watch(model, optimizer)
    for step in range(140):
        rows = language.rows(12, 24)
        if step % 10 == 0:
            logits = model(rows[:, :-1]).flatten(0, 1)
            drawn = torch.distributions.Categorical(logits=logits.detach()).sample()
            optimizer.zero_grad()
            F.cross_entropy(logits, drawn).backward()
            optimizer.see_curvature(len(drawn))
        optimizer.zero_grad()
        loss = F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        doctor.step(loss, rows)
        run.note(loss)
