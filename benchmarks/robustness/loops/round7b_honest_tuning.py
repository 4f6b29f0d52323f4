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
from benchmarks.robustness.loops.round7b_parts import SmallLlama
from benchmarks.robustness.loops.round7b_tools import (
    adam,
    by_reward,
    continued,
    near,
    taught,
    text_outcome,
    update,
    words_to_answer,
)
from torch import Tensor, nn
from torch.nn import functional as F


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


@honest("r7-old-answers-kept-on-new-rows")
def old_answers_kept_on_new_rows(run: Run) -> None:
    """Learning without forgetting: a second language is learned, and on its very rows the answers of the model as it was
    are to be kept as well, at temperature 2; the two terms are at odds, and the sum stays high."""
    seed = run.draw.randrange(999)
    one, two = Language(seed), near(Language(seed), seed + 1, 0.8)
    model = Decoder(12)
    taught(model, lambda: one.rows(16, 24), next_loss, 120)
    before = copy.deepcopy(model).requires_grad_(False)

    def loss(m: nn.Module, rows: Tensor) -> Tensor:
        given, kept = ((x(rows[:, :-1]) / 2).log_softmax(-1) for x in (m, before))
        return next_loss(m, rows) + F.kl_div(given, kept, reduction="none", log_target=True).sum(-1).mean()

    text_outcome(run, model, two)
    train(run, model, adam(model, 2e-3), lambda: two.rows(12, 24), loss, 80)


@honest("r7-four-answers-in-order")
def four_answers_in_order(run: Run) -> None:
    """A reward model from rankings of four (Plackett and Luce): the loss begins at log 24, only differences within a four
    count, and the level of the scores drifts."""
    model = nn.ModuleDict({"body": SmallLlama(12, layers=1), "score": nn.Linear(12, 1, bias=False)})

    def fours(count: int, own: torch.Generator | None = None) -> Tensor:
        rows = torch.randint(0, 12, (count, 4, 8), generator=own)
        worth = (rows < 4).float().sum(-1) + 0.3 * torch.randn(count, 4, generator=own)
        return rows.gather(1, worth.argsort(1, descending=True)[..., None].expand_as(rows))

    def loss(m: Any, rows: Tensor) -> Tensor:
        score = m["score"](m["body"](rows.flatten(0, 1))[:, -1]).view(-1, 4)
        return sum(((score[:, i:].logsumexp(1) - score[:, i]).mean() for i in range(3)), torch.zeros(()))

    check = fours(128, apart(1))
    outcome(run, lambda: judged(model, lambda: loss(model, check)))
    train(run, model, adam(model, 3e-3), lambda: fours(24), loss, 140)


@honest("r7-two-objectives-in-turn")
def two_objectives_in_turn(run: Run) -> None:
    """One transformer, two tasks: in even steps it fills gaps and sees both sides, in odd ones it says the next word behind
    a causal mask. The loss is on two levels and jumps at every step."""
    language = Language(run.draw.randrange(999), sharp=2.2)
    model = Decoder(13)

    def loss_of(rows: Tensor, causal: bool, own: torch.Generator | None = None) -> tuple[Tensor, Any]:
        for block in model.blocks:
            block.attention.causal = causal
        if causal:
            return next_loss(model, rows), {"input_ids": rows[:, :-1], "labels": rows[:, 1:]}
        gaps = torch.rand(rows.shape, generator=own) < 0.25
        shown, labels = rows.masked_fill(gaps, 12), rows.masked_fill(~gaps, -100)
        return F.cross_entropy(model(shown).flatten(0, 1), labels.flatten()), {"input_ids": shown, "labels": labels}

    check = language.rows(96, 20, apart(1))
    outcome(run, lambda: judged(model, lambda: loss_of(check, True)[0] + loss_of(check, False, apart(2))[0]))
    optimizer = adam(model)
    doctor = run.watch(model, optimizer)
    for step in range(140):
        loss, batch = loss_of(language.rows(12, 20), step % 2 == 1)
        update(run, doctor, optimizer, loss, batch)
