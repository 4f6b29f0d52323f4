"""Round 7b, honest and odd: alignment, fine-tuning, accumulation."""

import copy
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import (
    Decoder,
    Language,
    apart,
    examples,
    hf_trainer,
    judged,
    next_loss,
    outcome,
    tiny_gpt2,
    train,
)
from benchmarks.robustness.loops.round7b_parts import Graphs, SmallLlama, two_views
from benchmarks.robustness.loops.round7b_tools import (
    adam,
    by_reward,
    continued,
    near,
    said,
    taught,
    text_outcome,
    update,
    words_to_answer,
)
from torch import Tensor, nn
from torch.nn import functional as F


@honest("r7-odds-without-a-reference")
def odds_without_a_reference(run: Run) -> None:
    """ORPO: the likelihood of the better answer, and beside it the logarithm of the odds' ratio to the worse one; there is
    no reference model and no margin at zero."""
    model = Decoder(12)

    def pairs(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        prompt = torch.randint(0, 12, (count, 5), generator=own)
        worse = torch.randint(0, 12, (count, 3), generator=own)
        return torch.cat([prompt, prompt[:, -1:].repeat(1, 3)], 1), torch.cat([prompt, worse], 1)

    def loss(m: nn.Module, b: Any) -> Tensor:
        good, bad = (said(m, rows, 5) / 3 for rows in b)
        odds = good - bad - torch.log1p(-good.exp() + 1e-6) + torch.log1p(-bad.exp() + 1e-6)
        return (-good - 0.3 * F.logsigmoid(odds)).mean()

    check = pairs(128, apart(1))
    outcome(run, lambda: judged(model, lambda: loss(model, check)))
    train(run, model, adam(model, 3e-3), lambda: pairs(24), loss, 80, clip=1.0)


@honest("r7-repeats-made-unlikely")
def repeats_made_unlikely(run: Run) -> None:
    """Unlikelihood training: beside the usual loss each word that has stood in the row before is made less likely, where it
    is not the answer; one term pulls against the other, the sum is higher than the loss alone."""
    language = Language(run.draw.randrange(999), 24)
    model = SmallLlama(24, layers=1)

    def loss(m: nn.Module, rows: Tensor) -> Tensor:
        scores = m(rows[:, :-1]).log_softmax(-1)
        before = F.one_hot(rows[:, :-1], 24).cumsum(1).clamp_max(1)
        before = before.scatter(2, rows[:, 1:, None], 0)
        against = -(torch.log1p(-scores.exp().clamp_max(1 - 1e-5)) * before).sum(-1).mean()
        return F.nll_loss(scores.flatten(0, 1), rows[:, 1:].flatten()) + 0.5 * against

    check = language.rows(96, 20, apart(1))
    outcome(run, lambda: judged(model, lambda: loss(model, check)))
    train(run, model, adam(model), lambda: language.rows(12, 20), loss, 90)


@honest("r7-each-without-itself")
def each_without_itself(run: Run) -> None:
    """TRL's RLOOTrainer, GPT-2: four answers to a prompt, each compared with the mean of the other three. The loss has no
    direction; most groups agree at first, and have no gradient."""
    model = tiny_gpt2()
    prompts = words_to_answer(run, model)

    def reward(completions: list[str], answer: list[str], **_: Any) -> list[float]:
        return [float(text.split()[:1] == [a]) for text, a in zip(completions, answer, strict=True)]

    settings = {"steps": 50, "learning_rate": 1e-2, "max_completion_length": 1}
    by_reward(run, "RLOO", model, prompts, reward, **settings).train()


@honest("r7-taught-by-its-own-best")
def taught_by_its_own_best(run: Run) -> None:
    """Expert iteration: a hundred rows are sampled, the tenth with the highest reward is learned from for eight steps, and
    again. Rows come from the model itself, the loss falls towards zero within a round, and variety goes."""
    model = SmallLlama(layers=1)
    start = torch.randint(0, 12, (128, 1))

    def rises(rows: Tensor) -> Tensor:
        return (rows[:, 1:] > rows[:, :-1]).float().mean(1)

    def missed() -> float:
        with torch.random.fork_rng():
            torch.manual_seed(8)
            return 1 - float(rises(continued(model, start, 7)).mean())

    outcome(run, missed)
    optimizer = adam(model, 3e-3)
    doctor = run.watch(model, optimizer)
    for _ in range(12):
        rows = continued(model, torch.randint(0, 12, (100, 1)), 7)
        best = rows[rises(rows).topk(10).indices]
        for _ in range(8):
            update(run, doctor, optimizer, next_loss(model, best), best)


@honest("r7-corrected-on-its-own-words")
def corrected_on_its_own_words(run: Run) -> None:
    """On-policy distillation: the pupil says a row, and learns from the teacher's probabilities for that row, by the reverse
    divergence. There are no data; both models are called in each step, and the rows change with the pupil."""
    language = Language(run.draw.randrange(999))
    teacher, pupil = Decoder(12), SmallLlama(width=16, layers=1)
    taught(teacher, lambda: language.rows(16, 16), next_loss, 120)
    teacher.requires_grad_(False)
    text_outcome(run, pupil, language, 16)

    def batch() -> Tensor:
        return continued(pupil, torch.randint(0, 12, (16, 1)), 11)

    def loss(m: nn.Module, rows: Tensor) -> Tensor:
        given, wanted = m(rows).log_softmax(-1), teacher(rows).log_softmax(-1)
        return (given.exp() * (given - wanted)).sum(-1).mean()

    train(run, pupil, adam(pupil), batch, loss, 90)


@honest("r7-adapter-from-the-largest-directions")
def adapter_from_the_largest_directions(run: Run) -> None:
    """transformers' Trainer and peft: PiSSA and DoRA. The adapter begins with the largest singular directions of each
    matrix, which are taken out of the frozen one; both factors are far from zero, and a length is learned beside."""
    from peft import LoraConfig, get_peft_model

    seed = run.draw.randrange(999)
    language = Language(seed, first=4)
    base = tiny_gpt2()
    taught(base, lambda: language.rows(16, 20), lambda m, r: m(input_ids=r, labels=r).loss, 50)
    settings: dict[str, Any] = {"target_modules": ["c_attn", "c_fc"], "fan_in_fan_out": True, "use_dora": True}
    model = get_peft_model(base, LoraConfig(r=4, lora_alpha=4, init_lora_weights="pissa", **settings))
    other = near(language, seed + 1, 0.9)
    other.first = 4
    check = other.rows(96, 20, apart(1))
    outcome(run, lambda: judged(model, lambda: model(input_ids=check, labels=check).loss))
    rows = other.rows(300, 20)
    hf_trainer(run, model, examples(input_ids=rows, labels=rows), 60, learning_rate=4e-3).train()


@honest("r7-gradients-kept-of-embeddings")
def gradients_kept_of_embeddings(run: Run) -> None:
    """GradCache: 64 graphs are embedded in eights without a graph of the computation, the loss over all gives a gradient
    for each embedding, and eight passes more carry those into the weights: what backward() is called on is the product
    of embeddings and kept gradients, not the loss."""
    model = Graphs()

    def loss_of(a: Tensor, b: Tensor) -> Tensor:
        return F.cross_entropy(a @ b.T / 0.1, torch.arange(len(a)))

    check = two_views(128, apart(1))
    outcome(run, lambda: judged(model, lambda: loss_of(*(model(*view) for view in check))))
    optimizer = adam(model, 3e-3)
    doctor = run.watch(model, optimizer)
    for _ in range(70):
        whole = two_views(64)
        with torch.no_grad():
            kept = [torch.cat([model(n[i : i + 8], e[i : i + 8]) for i in range(0, 64, 8)]) for n, e in whole]
        kept = [k.requires_grad_() for k in kept]
        loss = loss_of(*kept)
        slopes = torch.autograd.grad(loss, kept)
        optimizer.zero_grad()
        for i in range(0, 64, 8):
            for (n, e), slope in zip(whole, slopes, strict=True):
                (model(n[i : i + 8], e[i : i + 8]) * slope[i : i + 8]).sum().backward()
        optimizer.step()
        doctor.step(loss.detach(), whole)
        run.note(loss)


@honest("r7-one-new-word")
def one_new_word(run: Run) -> None:
    """Textual inversion: a trained model meets a new word that is used as an old one is. Of all its weights one row of the
    embedding learns; the embedding's other rows have their gradients put to zero."""
    language = Language(run.draw.randrange(999), sharp=2.4)
    old = Decoder(13)
    taught(old, lambda: language.rows(16, 20), next_loss, 150)
    model = copy.deepcopy(old).requires_grad_(False)
    table = model.tokens.weight.requires_grad_(True)
    nn.init.normal_(table.data[12])

    def rows(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        r = language.rows(count, 20, own)
        return r.masked_fill(r == 5, 12), r

    def loss(m: nn.Module, b: Any) -> Tensor:
        return F.cross_entropy(m(b[0][:, :-1]).flatten(0, 1), b[1][:, 1:].flatten())

    check = rows(96, apart(1))
    outcome(run, lambda: judged(model, lambda: loss(model, check)))
    only = torch.zeros(13, 1).index_fill(0, torch.tensor([12]), 1.0)
    table.register_hook(lambda gradient: gradient * only)
    train(run, model, torch.optim.Adam([table], lr=5e-2), lambda: rows(16), loss, 60)
