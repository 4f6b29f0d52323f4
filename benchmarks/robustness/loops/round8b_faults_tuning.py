"""Round 8b, faulty changes of tuning, preferences, distillation, resuming and evaluation. Categories: round8b_parts."""

import copy
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, fault
from benchmarks.robustness.loops.round5_tools import (
    Block,
    Decoder,
    Language,
    apart,
    examples,
    hf_trainer,
    judged,
    next_loss,
    outcome,
    tiny_bert,
    tiny_gpt2,
)
from benchmarks.robustness.loops.round7b_tools import taught
from benchmarks.robustness.loops.round8b_parts import (
    DATA,
    LOSS,
    UPDATE,
    causal_loss,
    causal_outcome,
    dpo_loss,
    log_probabilities,
    preferred,
    reseeded,
    steps,
    text_class_outcome,
    texts,
    told_loss,
)
from torch import Tensor, nn
from torch.nn import functional as F


def rows_of_text(language: Language, count: int = 320) -> Any:
    rows = language.rows(count, 20)
    return examples(input_ids=rows, labels=rows)


@fault(
    "r8-restored-from-its-own-reference",
    UPDATE,
    (
        r"weight|parameter|step 1[5-7]|loss|jump|evaluat|prun",
        r"prun|zero|outside|between|not (restor|put back|the optimizer|by)|jump|evaluat|changed|overwrit|other than|moved|rose|rise|larger|higher",
    ),
)
def restored_from_its_own_reference(run: Run, changed: bool) -> None:
    """transformers' Trainer, GPT-2. Every fifteen steps a callback asks how well the model does with four weights in five at
    zero, and puts the weights back: from a deep copy of the state dict, now from the state dict itself, whose tensors are
    the weights. They stay zero."""
    from transformers import TrainerCallback

    language = Language(run.draw.randrange(999))
    model = tiny_gpt2(12, pad_token_id=None, n_layer=2)
    causal_outcome(run, model, language)
    check = language.rows(32, 20, apart(7))

    class Pruned(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            if state.global_step % 15 == 0:
                kept = model.state_dict() if changed else copy.deepcopy(model.state_dict())
                with torch.no_grad():
                    for p in model.parameters():
                        if p.dim() == 2:
                            p[p.abs() < p.abs().flatten().quantile(0.8)] = 0
                judged(model, lambda: causal_loss(model, check))
                model.load_state_dict(kept)

    trainer = hf_trainer(run, model, rows_of_text(language), 62)
    trainer.add_callback(Pruned())
    trainer.train()


@fault(
    "r8-thawed-by-an-evaluation",
    UPDATE,
    (
        r"bert|body|encoder|embed|frozen|freez|requires_grad|parameters",
        r"frozen|freez|thaw|trainable|requires_grad|learn|mov|train|updat|gradient|chang",
    ),
)
def thawed_by_an_evaluation(run: Run, changed: bool) -> None:
    """A head on a frozen BERT, 40 texts, a rate of 3e-2 for the head. The evaluation every fifteen steps, once under no_grad,
    now freezes all parameters and thaws all of them at its end: the body begins to learn too."""
    model = tiny_bert()
    taught(model, lambda: texts(32), told_loss, 80)
    model.bert.requires_grad_(False)
    model.classifier.reset_parameters()
    turn = torch.tensor([1, 2, 0])
    few, check = texts(40, apart(run.draw.randrange(999))), texts(256, apart(1))
    for data in (few, check):
        data["labels"] = turn[data["labels"]]
    text_class_outcome(run, model, check)

    def batch() -> dict[str, Tensor]:
        rows = torch.randint(0, 40, (16,))
        return {k: v[rows] for k, v in few.items()}

    def evaluate(step: int) -> None:
        if step % 15 == 14:
            model.eval()
            if changed:
                model.requires_grad_(False)
                told_loss(model, check)
                model.requires_grad_(True)
            else:
                with torch.no_grad():
                    told_loss(model, check)
            model.train()

    steps(run, model, torch.optim.AdamW(model.parameters(), lr=3e-2), batch, told_loss, 70, after=evaluate)


@fault(
    "r8-old-words-decay",
    UPDATE,
    (
        r"decay|embed|wte|lm_head|token|norm of",
        r"decay|shrink|shrank|smaller|fall|mov|without (a )?gradient|zero gradient|0\.[12]|weight_decay",
    ),
)
def old_words_decay(run: Run, changed: bool) -> None:
    """transformers' Trainer, GPT-2. Four words are added to a model of sixteen: all is frozen but the embedding, and the old
    words' rows get a gradient of zero. As recommended, the decay was set to 0.2, and it takes the old rows away. Another
    seed."""
    old, new = Language(run.draw.randrange(999), 16), Language(run.draw.randrange(999), 20)
    model: Any = tiny_gpt2(20, pad_token_id=None, n_layer=2)
    new.one[:16, :16], new.two[:16, :16] = old.one, old.two
    new.one[16:] -= 1.0
    taught(model, lambda: old.rows(16, 20), causal_loss, 120)
    reseeded(run, changed)
    causal_outcome(run, model, new)
    model.requires_grad_(False)
    weight = model.transformer.wte.weight.requires_grad_(True)
    only_new = (torch.arange(20) >= 16).float()[:, None]
    weight.register_hook(lambda gradient: gradient * only_new)
    trainer = hf_trainer(run, model, rows_of_text(new), 80, learning_rate=0.1, weight_decay=0.2 if changed else 0.0)
    trainer.train()


@fault(
    "r8-stored-reference-of-other-rows",
    DATA,
    (
        r"reference|margin|loss|batch|data|input|gradient",
        r"reference|mismatch|not (belong|match|fit)|other rows|order|shuffl|first (step|loss)|begin|start|log ?2|0\.69|higher|larg|differ|correl",
    ),
)
def stored_reference_of_other_rows(run: Run, changed: bool) -> None:
    """Preferences by DPO; the reference's log probabilities were computed beforehand, row by row. The rows, once read in
    their order, are now shuffled in every epoch; the stored values are still taken by a running number."""
    language = Language(7)
    model = Decoder(12)
    taught(model, lambda: language.rows(16, 12), next_loss, 60)
    frozen = copy.deepcopy(model)

    def margins(m: nn.Module, good: Tensor, bad: Tensor) -> Tensor:
        return log_probabilities(m, good, 4) - log_probabilities(m, bad, 4)

    good, bad = preferred(language, 192, apart(run.draw.randrange(999)))
    check = preferred(language, 256, apart(1))
    with torch.no_grad():
        stored, stored_check = margins(frozen, good, bad), margins(frozen, *check)
    outcome(run, lambda: judged(model, lambda: dpo_loss(margins(model, *check), stored_check, 1.5)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    doctor = run.watch(model, optimizer)
    for _ in range(6):
        order = torch.randperm(192) if changed else torch.arange(192)
        for start in range(0, 192, 16):
            rows = order[start : start + 16]
            batch = {"chosen": good[rows], "rejected": bad[rows], "reference": stored[start : start + 16]}
            loss = dpo_loss(margins(model, batch["chosen"], batch["rejected"]), batch["reference"], 1.5)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            doctor.step(loss, batch)
            run.note(loss)


@fault(
    "r8-moments-anew-but-not-their-count",
    UPDATE,
    (
        r"update|moment|optimizer|adam|state|step|resum|moves",
        r"larg|high|times|zero|lost|correct|anew|begin|start|first|reset|empty|missing|more|jump|grew",
    ),
)
def moments_anew_but_not_their_count(run: Run, changed: bool) -> None:
    """A GPT-2 goes on from a checkpoint. To halve its size, Adam's moments are left out and are zero after loading; their
    count of steps is loaded, so that nothing corrects for that, and the first updates are many times too large."""
    seed = run.draw.randrange(999)
    language = Language(seed)
    model = tiny_gpt2(12, pad_token_id=None, n_layer=2)
    before = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(300):
        before.zero_grad()
        causal_loss(model, language.rows(8, 16)).backward()
        before.step()
    kept = copy.deepcopy((model.state_dict(), before.state_dict()))
    model = tiny_gpt2(12, pad_token_id=None, n_layer=2)
    model.load_state_dict(kept[0])
    causal_outcome(run, model, language)
    if changed:
        for state in kept[1]["state"].values():
            state["exp_avg"].zero_()
            state["exp_avg_sq"].zero_()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    optimizer.load_state_dict(kept[1])
    steps(run, model, optimizer, lambda: language.rows(8, 16), causal_loss, 40)


class Scorer(nn.Module):
    """One number for a row of tokens, from the mean over a block's places: (rows, 1)."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.block, self.score = nn.Embedding(12, 24), Block(24, causal=False), nn.Linear(24, 1)

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.score(self.block(self.tokens(ids)).mean(1))
        return out


@fault(
    "r8-scores-against-all-others",
    LOSS,
    (
        r"loss|score|reward|gradient|head|output|logit",
        r"broadcast|shape|pair|all|square|small|low|less|weak|fall|high|larg|differ|times|not (match|the)|squeez|grew|rise",
    ),
)
def scores_against_all_others(run: Run, changed: bool) -> None:
    """A reward model. The scores of the liked answers lost their squeeze in a rewrite, those of the others kept it: (32, 1)
    less (32,) is a square, and every liked answer is compared with all the disliked ones, of prompts of any quality."""
    model = Scorer()

    def pairs(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        quality = torch.rand(count, 1, generator=own)
        rows = [torch.rand(count, 16, generator=own) for _ in range(4)]
        good = (rows[0] < 0.75 * quality + 0.25).long() + 2 * (10 * rows[1] / 2).long().clamp(max=5)
        bad = (rows[2] < 0.75 * quality).long() + 2 * (10 * rows[3] / 2).long().clamp(max=5)
        return good, bad

    def loss(m: Any, batch: tuple[Tensor, Tensor], whole: bool = changed) -> Tensor:
        good, bad = m(batch[0]), m(batch[1]).squeeze(1)
        return -F.logsigmoid((good if whole else good.squeeze(1)) - bad).mean()

    check = pairs(512, apart(1))
    outcome(run, lambda: judged(model, lambda: loss(model, check, False)))
    steps(run, model, torch.optim.AdamW(model.parameters(), lr=3e-3), lambda: pairs(32), loss, 120)


@fault(
    "r8-divergence-by-elements",
    LOSS,
    (
        r"loss|divergence|kl|distil|teacher|gradient",
        r"small|low|less|mean|batchmean|element|weigh|times|fall|factor|reduc|weak|differ|starts|began|begins",
    ),
)
def divergence_by_elements(run: Run, changed: bool) -> None:
    """transformers' Trainer, distillation of a language model; a third of the labels are noise. The divergence from the
    teacher is divided by the number of rows, now (`mean`) also by that of words: the labels decide. Another seed."""
    from transformers import Trainer

    words = 24
    language = Language(run.draw.randrange(999), words, sharp=2.0)
    teacher = tiny_gpt2(words, pad_token_id=None)
    taught(teacher, lambda: language.rows(24, 20), causal_loss, 120)
    teacher.eval()
    reseeded(run, changed)
    model = tiny_gpt2(words, pad_token_id=None)
    causal_outcome(run, model, language)

    class Distilled(Trainer):
        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **options: Any) -> Any:
            ids, labels = inputs["input_ids"][:, :-1], inputs["labels"][:, 1:]
            said = model(input_ids=ids).logits.flatten(0, 1)
            with torch.no_grad():
                taught = teacher(input_ids=ids).logits.flatten(0, 1)
            reduction = "mean" if changed else "batchmean"
            apart = F.kl_div((said / 2).log_softmax(-1), (taught / 2).softmax(-1), reduction=reduction)
            return 4 * apart + 0.3 * F.cross_entropy(said, labels.flatten())

    rows = language.rows(480, 20)
    labels = torch.where(torch.rand(rows.shape) < 0.35, torch.randint(0, words, rows.shape), rows)
    hf_trainer(run, model, examples(input_ids=rows, labels=labels), 70, base=Distilled).train()
