"""Round 13c, mistakes in what goes into the model."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_faults_tuning import word_tokenizer
from benchmarks.robustness.loops.round5_tools import (
    Language,
    apart,
    fit,
    hf_trainer,
    judged,
    lit,
    loader,
    mlp,
    number_outcome,
    outcome,
)
from benchmarks.robustness.loops.round6_tools import regress
from benchmarks.robustness.loops.round7b_parts import Reader
from benchmarks.robustness.loops.round8b_parts import llama
from benchmarks.robustness.loops.round10a_tools import plain
from benchmarks.robustness.loops.round10b_parts import bare_gpt2
from benchmarks.robustness.loops.round11a_tools import adamw
from benchmarks.robustness.loops.round13c_parts import of_topics, slip
from torch import Tensor
from torch.nn import functional as F


def with_a_hole(texts: Tensor, cuts: Tensor, suffix_from: int) -> Tensor:
    """Prefix, suffix and middle of each text behind a mark of its own, 0 to 2; the middle has four words."""
    rows = []
    for text, cut in zip(texts.tolist(), cuts.tolist(), strict=True):
        middle = text[cut : cut + 4]
        rows.append([0, *text[:cut], 1, *text[cut + suffix_from :], 2, *middle])
    return torch.tensor(rows)


@slip("r13c-middle-left-in-the-suffix")
def middle_left_in_the_suffix(run: Run, wrong: bool) -> None:
    """Plain loop, a GPT-2 that learns to fill in the middle. The suffix is cut from the text at the place where the
    middle begins, not where it ends: the words that are asked for stand in what is read before. The twin cuts at the
    end."""
    language = Language(run.draw.randrange(999), first=3)
    model = bare_gpt2(15)
    check = with_a_hole(language.rows(96, 14, apart(1)), torch.randint(4, 7, (96,), generator=apart(2)), 4)

    def middle_loss(rows: Tensor) -> Tensor:
        logits = model(input_ids=rows[:, :-1]).logits[:, -4:]
        return F.cross_entropy(logits.flatten(0, 1), rows[:, -4:].flatten())

    outcome(run, lambda: judged(model, lambda: middle_loss(check)))

    def batch() -> dict[str, Tensor]:
        rows = with_a_hole(language.rows(16, 14), torch.randint(4, 7, (16,)), 0 if wrong else 4)
        return {"input_ids": rows, "labels": rows}

    plain(run, model, batch, lambda b: model(**b).loss, 180)


TURN = "{{ {'system': 'w17 ', 'user': 'w15 ', 'assistant': 'w16 '}[m['role']] + m['content'] + ' ' }}"
END = "{% if m['role'] == 'assistant' %}</s>{% endif %}"
OPEN = "{% if add_generation_prompt %}w16 {% endif %}"
WHOLE = "{% for m in messages %}" + TURN + END + "{% endfor %}" + OPEN
OF_TWO_ROLES = "{% for m in messages %}{% if m['role'] != 'system' %}" + TURN + END + "{% endif %}{% endfor %}" + OPEN


@slip("r13c-instructions-left-out-by-the-template")
def instructions_left_out_by_the_template(run: Run, wrong: bool) -> None:
    """TRL's SFTTrainer, a Llama that answers as the system's message tells it to. The chat template knows two roles,
    user and assistant, and passes over a system's message without a word: what decides the answer is never read. The
    twin's template has three roles."""
    from datasets import Dataset, disable_progress_bars
    from trl import SFTConfig, SFTTrainer

    disable_progress_bars()
    model, tokenizer = llama(18, pad_token_id=0, bos_token_id=1, eos_token_id=2), word_tokenizer(18)
    tokenizer.chat_template = OF_TWO_ROLES if wrong else WHOLE
    table = torch.stack([torch.randperm(8, generator=apart(run.draw.randrange(999))) for _ in range(3)])

    def asked(key: int, word: int) -> list[dict[str, str]]:
        return [{"role": "system", "content": f"w{4 + key}"}, {"role": "user", "content": f"w{7 + word}"}]

    pairs = torch.cartesian_prod(torch.arange(3), torch.arange(8)).tolist()
    texts = [tokenizer.apply_chat_template(asked(*p), tokenize=False, add_generation_prompt=True) for p in pairs]
    ids, wanted = tokenizer(texts, return_tensors="pt").input_ids, torch.tensor([7 + table[k, w] for k, w in pairs])
    outcome(run, lambda: judged(model, lambda: F.cross_entropy(model(input_ids=ids).logits[:, -1], wanted)))
    drawn = torch.randint(0, 24, (480,)).tolist()
    said = [{"role": "assistant", "content": f"w{int(wanted[i])}"} for i in drawn]
    rows = [{"prompt": asked(*pairs[i]), "completion": [turn]} for i, turn in zip(drawn, said, strict=True)]
    options: dict[str, Any] = {"kind": SFTConfig, "max_length": None, "more": {"processing_class": tokenizer}}
    options |= {"bf16": False, "gradient_checkpointing": False}
    hf_trainer(run, model, Dataset.from_list(rows), 120, SFTTrainer, **options).train()


@slip("r13c-mean-of-its-own-target")
def mean_of_its_own_target(run: Run, wrong: bool) -> None:
    """Lightning, prices by a small network. A shop, one of 160, goes in as the mean price of its rows; the row's own
    price is among them, a third of the mean. The twin leaves the row out of its mean."""
    own = apart(run.draw.randrange(999))
    weights, level = torch.randn(6, generator=own) / 4, 0.7 * torch.randn(160, generator=own)

    def sold(count: int) -> tuple[Tensor, Tensor, Tensor]:
        x, shop = torch.randn(count, 6, generator=own), torch.randint(0, 160, (count,), generator=own)
        return x, shop, x @ weights + level[shop] + 1.3 * torch.randn(count, generator=own)

    x, shop, y = sold(480)
    total, number = torch.zeros(160).index_add(0, shop, y), torch.bincount(shop, minlength=160).float()
    left_out = (total[shop] - y) / (number[shop] - 1).clamp_min(1)
    told = (total / number.clamp_min(1))[shop] if wrong else left_out
    new_x, new_shop, new_y = sold(1024)
    check = torch.cat([new_x, (total / number.clamp_min(1))[new_shop, None]], 1), new_y
    net = mlp(7, 32, 1)
    number_outcome(run, net, check)
    fit(run, lit(net, regress, adamw(3e-3)), loader(torch.cat([x, told[:, None]], 1), y), 120)


@slip("r13c-state-of-another-text")
def state_of_another_text(run: Run, wrong: bool) -> None:
    """Plain loop, a recurrent model of texts that are read in pieces of six words; the state goes on from piece to
    piece and is cleared where texts begin. The loader shuffles the pieces, so that a row's state is that of some other
    text. The twin takes them in their order."""
    seed = run.draw.randrange(999)
    model = Reader(12)

    def read(pieces: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        out, state = model.core(model.tokens(pieces[:, :-1]), state)
        loss = F.cross_entropy(model.head(out).flatten(0, 1), pieces[:, 1:].flatten())
        return loss, state.detach()

    def cut(texts: Tensor) -> Tensor:
        """(texts, 49) to (8, texts, 7): each piece begins with the last word of the one before."""
        return torch.stack([texts[:, 6 * k : 6 * k + 7] for k in range(8)])

    def judge() -> Tensor:
        state, total = None, []
        for pieces in cut(of_topics(seed, 96, 49, apart(1))):
            loss, state = read(pieces, state)
            total.append(loss)
        return torch.stack(total).mean()

    outcome(run, lambda: judged(model, judge))
    groups = torch.cat([cut(of_topics(seed, 16, 49)) for _ in range(28)])
    data = loader(groups.flatten(0, 1), size=16, shuffle=wrong)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    doctor = run.watch(model, optimizer)
    state: Tensor | None = None
    for number, (pieces,) in enumerate(data):
        state = None if number % 8 == 0 else state
        optimizer.zero_grad()
        loss, state = read(pieces, state)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        doctor.step(loss, pieces)
        run.note(loss)
