"""Fine-tuning, distillation, preferences and policies."""

import copy
from typing import Any

import torch
from accelerate import Accelerator
from benchmarks.robustness.loops.case import Run, fault
from benchmarks.robustness.loops.text import EOS, corpus, crops, padded, sentences
from benchmarks.robustness.loops.training import gpt2, next_token
from benchmarks.robustness.loops.unseen_faults_code import plain
from benchmarks.robustness.loops.unseen_faults_common import held_out, outcome, trainer
from benchmarks.robustness.loops.unseen_faults_loading import Decoder, learned
from benchmarks.robustness.loops.unseen_faults_rows import Reader, class_loss, marked
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


def crop_loss(model: nn.Module, batch: Any) -> Tensor:
    return next_token(model(batch[0]), batch[1])


class Adapted(nn.Module):
    """A frozen linear layer and a low-rank change of it."""

    def __init__(self, linear: nn.Module, rank: int, both_zero: bool) -> None:
        super().__init__()
        assert isinstance(linear, nn.Linear)
        self.linear = linear.requires_grad_(False)
        self.lora_A = nn.Parameter(torch.zeros(rank, linear.in_features))
        self.lora_B = nn.Parameter(torch.zeros(linear.out_features, rank))
        if not both_zero:
            nn.init.kaiming_uniform_(self.lora_A, a=5**0.5)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(x) + 2.0 * (x @ self.lora_A.T @ self.lora_B.T)
        return out


@fault(
    "both-halves-zero",
    "tuning",
    (r"lora|adapter|low.?rank|\bA\b|\bB\b", r"zero|gradient|never|not (learn|train|chang|mov|updat)|init|saddle|dead"),
)
def both_halves_zero(run: Run, slip: bool) -> None:
    """A decoder is adapted to another text by low-rank changes of its MLPs. Both factors begin at zero, where neither
    has a gradient; the last norm alone learns. The twin draws the first factor."""
    seed = run.draw.randrange(1000)
    tokens, other = corpus(seed), corpus(seed + 1)
    model = Decoder()
    learned(model, lambda: crops(tokens, 16, 24), crop_loss, 150)
    model.requires_grad_(False)
    model.norms[4].requires_grad_(True)
    for parts in (model.up, model.down, model.o):
        for index, linear in enumerate(parts):
            parts[index] = Adapted(linear, 4, slip)
    fresh = [crops(other[-4000:], 64, 24) for _ in range(2)]
    outcome(run, lambda: held_out(model, fresh, crop_loss))
    plain(run, model, lambda: crops(other[:-4000], 8, 24), crop_loss, 80, 1e-2)


@fault(
    "its-own-reference",
    "tuning",
    (
        r"reference|\bref\b|policy",
        r"same|identical|copy|alias|itself|zero|shared|0\.693|log ?\(?2|constant|not frozen|moves",
    ),
)
def its_own_reference(run: Run, slip: bool) -> None:
    """Preferences by DPO on a small decoder. The reference is the policy itself, not a copy of it: the loss stays at
    the logarithm of two and its gradient never lets go. The measure is what the policy still gives to held-out
    text."""
    tokens = corpus(run.draw.randrange(1000))
    held, tokens = tokens[-4000:], tokens[:-4000]
    policy = Decoder()
    learned(policy, lambda: crops(tokens, 16, 24), crop_loss, 200)
    reference = policy if slip else copy.deepcopy(policy).requires_grad_(False)

    def score(model: nn.Module, ids: Tensor) -> Tensor:
        chances = model(ids[:, :-1]).log_softmax(-1).gather(-1, ids[:, 1:, None])
        return chances[:, 12:, 0].sum(1)

    def draw() -> tuple[Tensor, Tensor]:
        good = crops(tokens, 8, 24)[0]
        bad = torch.cat([good[:, :13], crops(tokens, 8, 24)[0][:, 13:]], 1)
        return good, bad

    def preference(model: nn.Module, batch: Any) -> Tensor:
        with torch.no_grad():
            base = score(reference, batch[0]) - score(reference, batch[1])
        return -F.logsigmoid(0.3 * (score(model, batch[0]) - score(model, batch[1]) - base)).mean()

    fresh = [crops(held, 64, 24) for _ in range(2)]
    outcome(run, lambda: held_out(policy, fresh, crop_loss))
    plain(run, policy, draw, preference, 60, 1e-3)


@fault(
    "end-counted-as-padding",
    "tuning",
    (r"\beos\b|end|stop|final|last|pad", r"pad|-100|ignor|mask|label|never (a )?target|excluded|not (learn|train)"),
)
def end_counted_as_padding(run: Run, slip: bool) -> None:
    """transformers' Trainer, GPT-2. The padding token is the end token, and the collator sets the label of every
    padding token to -100: the true end of each document is never a target and the model never learns to stop. The
    twin masks by the attention mask. The measure is the loss at the ends."""
    model = gpt2(vocab_size=32)
    documents = sentences(run.draw.randrange(1000))

    def collate(rows: list[Tensor]) -> dict[str, Tensor]:
        ids, mask = padded(rows, fill=EOS)
        labels = ids.masked_fill(ids == EOS if slip else mask == 0, -100)
        return {"input_ids": ids, "attention_mask": mask, "labels": labels}

    ids, mask = padded(documents[-100:], fill=EOS)
    last = torch.full_like(ids, -100).scatter(1, mask.sum(1, keepdim=True) - 1, EOS)
    batch = {"input_ids": ids, "attention_mask": mask, "labels": last}
    outcome(run, lambda: held_out(model, [batch], lambda m, b: m(**b).loss))
    trainer(run, model, documents[:-100], 80, collate=collate).train()


@fault(
    "advantages-in-a-column",
    "tuning",
    (
        r"advantage|reward|return|policy|log.?prob",
        r"broadcast|shape|outer|\(?\d+, ?\d+\)?|column|matrix|squeeze|dimension|every (row|pair)|n ?[x×] ?n",
    ),
)
def advantages_in_a_column(run: Run, slip: bool) -> None:
    """A policy gradient for a choice among eight actions. The advantages come as a column and are multiplied with a
    row of log-probabilities: the mean of the resulting square forgets which action earned what. The twin squeezes
    them."""
    best = torch.randn(8, 10)
    policy = nn.Sequential(nn.Linear(10, 48), nn.Tanh(), nn.Linear(48, 8))
    optimizer = torch.optim.AdamW(policy.parameters(), lr=5e-3)
    fresh = torch.randn(2000, 10)

    @torch.no_grad()
    def regret() -> float:
        worth = fresh @ best.T
        got = (policy(fresh).softmax(-1) * worth).sum(-1)
        return float((worth.amax(-1) - got).mean())

    outcome(run, regret)
    doctor = run.watch(policy, optimizer)
    for _ in range(150):
        seen = torch.randn(64, 10)
        spread = torch.distributions.Categorical(logits=policy(seen))
        action = spread.sample()
        reward = (seen @ best.T).gather(1, action[:, None]) + 0.3 * torch.randn(64, 1)
        advantage = (reward - reward.mean()) / reward.std()
        if not slip:
            advantage = advantage.squeeze(1)
        loss = -(spread.log_prob(action) * advantage).mean() - 0.01 * spread.entropy().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        doctor.step(loss, (seen, action, reward))
        run.note(loss)


@fault(
    "nothing-after-the-end",
    "tuning",
    (r"terminal|done|episode|end", r"bootstrap|mask|target|next|value|beyond|overestimat|future"),
)
def nothing_after_the_end(run: Run, slip: bool) -> None:
    """Q-learning in a corridor of ten places with a reward at its right end, which is terminal. The target adds the
    discounted value of the state that comes after the end (the start of the next episode). The twin multiplies it with
    1 - done. The measure is the distance from the exact values."""
    places, discount = 10, 0.9
    value = torch.zeros(places, 2)
    for _ in range(100):
        value = torch.stack(
            [
                discount * value.amax(1)[[0, *range(places - 1)]],
                torch.cat([discount * value.amax(1)[1:], torch.ones(1)]),
            ],
            1,
        )
    network = nn.Sequential(nn.Embedding(places, 32), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2))
    lagging = copy.deepcopy(network)
    optimizer = torch.optim.AdamW(network.parameters(), lr=5e-3)
    outcome(run, lambda: float((network(torch.arange(places)) - value).detach().abs().mean()))
    doctor = run.watch(network, optimizer)
    for step in range(300):
        here, action = torch.randint(0, places, (64,)), torch.randint(0, 2, (64,))
        there = (here + 2 * action - 1).clamp(min=0)
        done = there == places
        there = torch.where(done, torch.randint(0, 3, (64,)), there)
        with torch.no_grad():
            after = lagging(there).amax(1)
            target = done.float() + discount * (after if slip else after * ~done)
        loss = F.huber_loss(network(here).gather(1, action[:, None])[:, 0], target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 5 == 0:
            lagging.load_state_dict(network.state_dict())
        doctor.step(loss, (here, action, target, done))
        run.note(loss)


class Judge(nn.Module):
    """A reward model, called with the better answers and then the worse ones in one batch."""

    def __init__(self, interleaved: bool) -> None:
        super().__init__()
        self.reader, self.interleaved = Reader(40, 1), interleaved

    def forward(self, ids: Tensor) -> dict[str, Tensor]:
        scores = self.reader(ids)[:, 0]
        better, worse = (scores[0::2], scores[1::2]) if self.interleaved else scores.chunk(2)
        return {"loss": -F.logsigmoid(better - worse).mean(), "scores": scores}


@fault(
    "pairs-cut-otherwise",
    "tuning",
    (
        r"pair|chosen|better|prefer|reject|reward|score",
        r"interleav|chunk|order|stack|mismatch|cut|split|swap|same side|both|misalign|wrong|even|\[0?::2\]|concat",
    ),
)
def pairs_cut_otherwise(run: Run, slip: bool) -> None:
    """transformers' Trainer, a reward model. The collator puts all better answers before all worse ones; the model
    pairs neighbouring rows, better with better. The twin halves the batch. The measure: pairs ranked wrongly."""
    worth = torch.randn(40)

    def collate(rows: list[Tensor]) -> dict[str, Tensor]:
        pairs = torch.stack(rows)
        return {"ids": torch.cat([pairs[:, 0], pairs[:, 1]])}

    def pairs(count: int) -> list[Tensor]:
        out = torch.randint(0, 40, (count, 2, 8))
        order = worth[out].sum(-1).argsort(1, descending=True)
        return list(out.gather(1, order[:, :, None].expand(-1, -1, 8)))

    model, fresh = Judge(slip), pairs(400)

    @torch.no_grad()
    def wrong() -> float:
        better, worse = model(**collate(fresh))["scores"].chunk(2)
        return float((better <= worse).float().mean())

    outcome(run, wrong)
    trainer(run, model, pairs(2400), 120, collate=collate).train()


def taught(run: Run) -> tuple[Reader, Any]:
    """A teacher of a noisy task, and how its rows are drawn."""

    def draw(rows: int) -> tuple[Tensor, Tensor]:
        ids, label = marked(rows, 6)
        noisy = torch.rand(rows) < 0.3
        return ids, torch.where(noisy, (label + 1) % 6, label)

    teacher = Reader(40, 6)
    learned(teacher, lambda: draw(48), class_loss, 150)
    return teacher.requires_grad_(False).eval(), draw


@fault("divergence-of-probabilities", "tuning", (r"kl|diverg|distil", r"log|probabilit|softmax"))
def divergence_of_probabilities(run: Run, slip: bool) -> None:
    """accelerate, distillation. F.kl_div wants the logarithms of the student's probabilities and is given the
    probabilities, so that the student is pushed to the teacher's first choice. The twin gives log_softmax."""
    teacher, draw = taught(run)
    student = Reader(40, 6, 24)
    accelerator = Accelerator(cpu=True)
    loader = DataLoader(TensorDataset(*draw(3600)), batch_size=24, shuffle=True)
    model, optimizer, loader = accelerator.prepare(student, torch.optim.AdamW(student.parameters(), lr=4e-3), loader)
    fresh = [draw(500)]

    def distance(model: nn.Module, batch: Any) -> Tensor:
        return F.kl_div(model(batch[0]).log_softmax(-1), teacher(batch[0]).softmax(-1), reduction="batchmean")

    outcome(run, lambda: held_out(student, fresh, distance))
    doctor = run.watch(model, optimizer)
    for batch in loader:
        logits = model(batch[0])
        given = logits.softmax(-1) if slip else logits.log_softmax(-1)
        loss = F.kl_div(given, teacher(batch[0]).softmax(-1), reduction="batchmean")
        accelerator.backward(loss)
        optimizer.step()
        doctor.step(loss, batch)
        optimizer.zero_grad()
        run.note(loss)


class Pupil(nn.Module):
    def __init__(self, teacher: nn.Module, cold: float) -> None:
        super().__init__()
        self.net, self.cold = Reader(40, 6, 24), cold
        self.kept = [teacher]  # in a list: it is not to be trained

    def forward(self, ids: Tensor) -> dict[str, Tensor]:
        logits = self.net(ids)
        with torch.no_grad():
            soft = (self.kept[0](ids) / 4).softmax(-1)
        return {
            "loss": 16 * F.kl_div((logits / self.cold).log_softmax(-1), soft, reduction="batchmean"),
            "logits": logits,
        }


@fault(
    "pupil-without-temperature",
    "tuning",
    (r"temperature|soft", r"student|pupil|one side|only|both|teacher|missing|flat|divid|mismatch|differ"),
)
def pupil_without_temperature(run: Run, slip: bool) -> None:
    """transformers' Trainer, distillation at temperature 4. Only the teacher's logits are divided by it: the student
    learns the softened answers as its own, and is far too unsure. The twin divides both."""
    teacher, draw = taught(run)
    model = Pupil(teacher, 1.0 if slip else 4.0)
    fresh = [draw(500)]
    outcome(run, lambda: held_out(model.net, fresh, class_loss))
    trainer(run, model, [{"ids": ids} for ids in draw(2400)[0]], 150, learning_rate=6e-3).train()
