"""Round 10b, unusual objectives which are meant, each rewritten without harm."""

import torch
from benchmarks.robustness.loops.case import Run, innocent
from benchmarks.robustness.loops.round5_tools import Decoder, Language, apart, judged, next_loss, outcome, tiny_bert
from benchmarks.robustness.loops.round7b_tools import taught
from benchmarks.robustness.loops.round8b_parts import causal_loss, preferred, reseeded, steps, text_class_outcome, texts
from benchmarks.robustness.loops.round9b_parts import accelerator
from benchmarks.robustness.loops.round10b_parts import bare_gpt2, columns
from torch import Tensor, nn
from torch.nn import functional as F


@innocent("r10b-two-passes-of-dropout")
def two_passes_of_dropout(run: Run, changed: bool) -> None:
    """accelerate, BERT with R-Drop: each batch twice, with other dropout, and a divergence between the two predictions. Once in
    two passes, now in one pass over the batch behind itself."""
    own = apart(run.draw.randrange(999))
    net = tiny_bert(hidden_dropout_prob=0.3, attention_probs_dropout_prob=0.3)
    text_class_outcome(run, net, texts(256, apart(901)))
    engine = accelerator()
    model, optimizer, data = engine.prepare(
        net, torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=0.01), columns(texts(480, own))
    )
    doctor = run.watch(model, optimizer)
    for _ in range(4):
        for batch in data:
            ids, keep, y = batch["input_ids"], batch["attention_mask"], batch["labels"]
            if changed:
                both = model(input_ids=ids.repeat(2, 1), attention_mask=keep.repeat(2, 1)).logits
            else:
                both = torch.cat([model(input_ids=ids, attention_mask=keep).logits for _ in range(2)])
            p, q = both.log_softmax(-1).chunk(2)
            apart_ = F.kl_div(p, q, reduction="batchmean", log_target=True)
            apart_ = (apart_ + F.kl_div(q, p, reduction="batchmean", log_target=True)) / 2
            loss = F.cross_entropy(both, y.repeat(2)) + apart_
            optimizer.zero_grad()
            engine.backward(loss)
            optimizer.step()
            doctor.step(loss, batch)
            run.note(loss)


@innocent("r10b-unlearning")
def unlearning(run: Run, changed: bool) -> None:
    """A GPT keeps one language and forgets another, whose loss is followed upwards until it is 3. It was taken off the first
    one's loss; now what is missing up to 3 is added, which differs by a constant. Another seed."""
    seed = run.draw.randrange(500)
    kept, forgotten = Language(seed), Language(seed + 1)
    reseeded(run, changed)
    model = Decoder(12, layers=2)
    both = lambda count, own=None: (kept.rows(count, 20, own), forgotten.rows(count, 20, own))  # type: ignore[no-untyped-call]
    taught(model, lambda: torch.cat(both(8)), next_loss, 200)
    check = both(96, apart(901))
    outcome(
        run, lambda: judged(model, lambda: next_loss(model, check[0]) - 0.3 * next_loss(model, check[1]).clamp(max=3))
    )

    def loss(m: nn.Module, rows: tuple[Tensor, Tensor]) -> Tensor:
        known, unknown = next_loss(m, rows[0]), next_loss(m, rows[1])
        return known + 0.3 * (3 - unknown).relu() if changed else known - 0.3 * unknown.clamp(max=3)

    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    steps(run, model, optimizer, lambda: both(16), loss, 80)


@innocent("r10b-preferences-without-a-reference")
def preferences_without_a_reference(run: Run, changed: bool) -> None:
    """SimPO on a GPT-2: mean log probabilities, a margin, no reference. Answers went through the model in two passes, and go in
    one now; the logarithm of the sigmoid became a softplus."""
    language = Language(run.draw.randrange(999))
    model = bare_gpt2(12)
    taught(model, lambda: language.rows(16, 12), causal_loss, 100)

    def scores(m: nn.Module, rows: Tensor) -> Tensor:
        logs = m(input_ids=rows[:, :-1]).logits.log_softmax(-1).gather(2, rows[:, 1:, None]).squeeze(2)
        return 2 * logs[:, 3:].mean(1)

    def loss(m: nn.Module, pair: tuple[Tensor, Tensor]) -> Tensor:
        if changed:
            liked, disliked = scores(m, torch.cat(pair)).chunk(2)
            return F.softplus(disliked - liked + 0.5).mean()
        return -F.logsigmoid(scores(m, pair[0]) - scores(m, pair[1]) - 0.5).mean()

    check = preferred(language, 256, apart(901))
    outcome(run, lambda: judged(model, lambda: loss(model, check)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
    steps(run, model, optimizer, lambda: preferred(language, 16), loss, 80)


@innocent("r10b-groups-without-a-spread-skipped")
def groups_without_a_spread_skipped(run: Run, changed: bool) -> None:
    """Group-relative policy gradients: groups whose answers all have one reward are left out, and where none is left there is no
    update. They were left out by index, and have a weight of zero in the mean now."""
    key = torch.randperm(8, generator=apart(run.draw.randrange(999)))
    model = Decoder(8)
    prompts = torch.arange(8)[:, None]
    outcome(run, lambda: judged(model, lambda: 1 - model(prompts)[:, -1].softmax(-1)[torch.arange(8), key].mean()))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    doctor = run.watch(model, optimizer)
    for _ in range(100):
        logs = model(prompts)[:, -1].log_softmax(-1)
        answers = torch.multinomial(logs.detach().exp(), 6, replacement=True)
        rewards = (answers == key[:, None]).float()
        spread = rewards.std(1, keepdim=True)
        useful = spread.squeeze(1) > 0
        if not useful.any():
            continue
        advantages = (rewards - rewards.mean(1, keepdim=True)) / (spread + 1e-6)
        each = -advantages * logs.gather(1, answers)
        if changed:
            weight = useful.float()[:, None]
            loss = (weight * each).sum() / (6 * weight.sum())
        else:
            loss = each[useful].mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        doctor.step(loss, {"input_ids": prompts, "answers": answers, "rewards": rewards})
        run.note(loss)
