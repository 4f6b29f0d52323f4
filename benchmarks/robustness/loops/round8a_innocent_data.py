"""Round 8, part a, innocent changes of what is around the model: batches, padding, trainers, evaluation."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, innocent
from benchmarks.robustness.loops.round5_tools import (
    Classifier,
    Decoder,
    Examples,
    apart,
    class_outcome,
    cnn,
    documents,
    endless,
    examples,
    hf_trainer,
    judged,
    language_outcome,
    loader,
    next_loss,
    outcome,
    pictures,
    tiny_bert,
    tiny_gpt2,
)
from benchmarks.robustness.loops.round8a_tools import adam, language, shuffled, told, uneven
from torch import Tensor, nn
from torch.nn import functional as F


def texts(count: int, own: torch.Generator) -> dict[str, Tensor]:
    ids, keep, y = documents(count, own)
    return {"input_ids": ids, "attention_mask": keep.long(), "labels": y}


@innocent("r8-another-shuffle")
def another_shuffle(run: Run, changed: bool) -> None:
    """transformers' Trainer, BERT over texts, with dropout. The Trainer's seed is another one: the same texts come in
    another order, and dropout draws other numbers."""
    own = apart(run.draw.randrange(999))
    rows, check = texts(400, own), texts(256, own)
    model = tiny_bert()
    outcome(run, lambda: judged(model, lambda: model(**check).loss))
    seed = run.draw.randrange(999)
    hf_trainer(run, model, examples(**rows), 150, seed=seed + changed).train()


@innocent("r8-two-halves-accumulated")
def two_halves_accumulated(run: Run, changed: bool) -> None:
    """accelerate, an encoder of texts. Sixteen rows no longer fit: the same rows come in halves, accelerate divides each
    loss by two and steps after the second."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState

    own = apart(run.draw.randrange(999))
    ids, keep, y = documents(320, own)
    net = Classifier()
    class_outcome(run, net, documents(256, own))
    AcceleratorState._reset_state(True)
    GradientState._reset_state()
    engine = Accelerator(cpu=True, gradient_accumulation_steps=2 if changed else 1)
    batches = loader(ids, keep, y, size=8 if changed else 16)
    model, optimizer, batches = engine.prepare(net, adam(net), batches)
    doctor = run.watch(model, optimizer)
    losses, rows = [], []
    for _ in range(7):
        for batch in batches:
            with engine.accumulate(model):
                loss = F.cross_entropy(model(batch[0], batch[1]), batch[2])
                engine.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.detach())
            rows.append(batch)
            if engine.sync_gradients:
                mean = torch.stack(losses).mean()
                doctor.step(mean, rows if changed else rows[0])
                run.note(mean)
                losses, rows = [], []


@innocent("r8-padded-to-a-multiple-of-eight")
def padded_to_a_multiple_of_eight(run: Run, changed: bool) -> None:
    """transformers' Trainer, BERT over texts of 4 to 12 words. Batches were padded to their longest row, and are padded to
    a multiple of eight; the mask covers the padding in both."""
    own = apart(run.draw.randrange(999))
    ids, keep, y = documents(400, own)
    model = tiny_bert(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    check = texts(256, own)
    outcome(run, lambda: judged(model, lambda: model(**check).loss))

    def collate(rows: list[Any]) -> dict[str, Tensor]:
        longest = max(len(row["input_ids"]) for row in rows)
        length = -longest % 8 + longest if changed else longest
        out = {}
        for name in ("input_ids", "attention_mask"):
            out[name] = torch.stack([F.pad(row[name], (0, length - len(row[name]))) for row in rows])
        return out | {"labels": torch.stack([row["labels"] for row in rows])}

    data = []
    for row, mask, label in zip(ids, keep, y, strict=True):
        size = int(mask.sum())
        data.append({"input_ids": row[:size], "attention_mask": torch.ones(size, dtype=torch.long), "labels": label})
    more = {"data_collator": collate}
    hf_trainer(run, model, Examples(data), 120, more=more).train()


@innocent("r8-trainer-for-a-plain-loop")
def trainer_for_a_plain_loop(run: Run, changed: bool) -> None:
    """GPT-2 of transformers. The plain loop, AdamW, a rate that falls in a line, gradients clipped at one, is handed over
    to transformers' Trainer with equal settings; its order of rows is its own."""
    from transformers import get_linear_schedule_with_warmup

    words = language(run, 12, first=4)
    rows, steps = words.rows(480, 24, apart(run.draw.randrange(999))), 150
    model = tiny_gpt2()
    check = words.rows(96, 24, apart(901))
    outcome(run, lambda: judged(model, lambda: model(input_ids=check, labels=check).loss))
    if changed:
        hf_trainer(run, model, examples(input_ids=rows, labels=rows), steps, weight_decay=0.0).train()
        return
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0.0)
    scheduler = get_linear_schedule_with_warmup(optimizer, 0, steps)
    doctor = run.watch(model, optimizer, scheduler=scheduler)
    batches = endless(shuffled(rows, 16))
    for _ in range(steps):
        batch = next(batches)
        loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        doctor.step(loss, {"input_ids": batch, "labels": batch})
        run.note(loss)


@innocent("r8-evaluated-with-samples")
def evaluated_with_samples(run: Run, changed: bool) -> None:
    """Plain GPT with dropout. Every fifteen steps it is judged now, in evaluation mode, and writes four rows, whose words
    are drawn from the same random numbers as batches and dropout."""
    words = language(run)
    model = Decoder(12, drop=0.1)
    language_outcome(run, model, words)
    held_out = words.rows(32, 24, apart(5))
    optimizer = adam(model)
    doctor = run.watch(model, optimizer)
    for step in range(150):
        rows = words.rows(12, 24)
        optimizer.zero_grad()
        loss = next_loss(model, rows)
        loss.backward()
        optimizer.step()
        doctor.step(loss, rows)
        run.note(loss)
        if changed and step % 15 == 14:
            model.eval()
            with torch.no_grad():
                next_loss(model, held_out)
                said = torch.zeros(4, 1, dtype=torch.long)
                for _ in range(12):
                    said = torch.cat([said, torch.multinomial(model(said)[:, -1].softmax(-1), 1)], 1)
            model.train()


@innocent("r8-decoder-inputs-given")
def decoder_inputs_given(run: Run, changed: bool) -> None:
    """transformers' Trainer, T5 that says a row backwards. It made the decoder's inputs out of the labels; now the
    collator does, and hands them over."""
    from transformers import T5Config, T5ForConditionalGeneration

    settings: dict[str, Any] = {"vocab_size": 16, "d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 1}
    settings |= {"num_heads": 2, "dropout_rate": 0.0, "decoder_start_token_id": 0, "pad_token_id": 0}
    model = T5ForConditionalGeneration(T5Config(**settings))
    own = apart(run.draw.randrange(999))
    source, check = torch.randint(2, 16, (400, 6), generator=own), torch.randint(2, 16, (192, 6), generator=own)
    outcome(run, lambda: judged(model, lambda: model(input_ids=check, labels=check.flip(1)).loss))

    def collate(rows: list[Any]) -> dict[str, Tensor]:
        out: dict[str, Tensor] = torch.utils.data.default_collate(rows)
        if changed:
            out["decoder_input_ids"] = F.pad(out["labels"][:, :-1], (1, 0))
        return out

    data = examples(input_ids=source, labels=source.flip(1))
    hf_trainer(run, model, data, 200, learning_rate=1e-2, more={"data_collator": collate}).train()


@innocent("r8-augmented-in-the-data-set")
def augmented_in_the_data_set(run: Run, changed: bool) -> None:
    """Convolutions over pictures, which are mirrored and made noisy by chance. That was done to the whole batch in the
    loop, and is done to each row in the data set, so that all random numbers are others."""
    seed = run.draw.randrange(999)
    x, y = pictures(320, seed, own=apart(seed + 1))
    model = cnn()
    class_outcome(run, model, pictures(256, seed, own=apart(seed + 2)))

    def disturbed(rows: Tensor) -> Tensor:
        turned = torch.where(torch.rand(len(rows), 1, 1, 1) < 0.3, rows.flip(-1), rows)
        return turned + 0.1 * torch.randn(rows.shape)

    class Disturbed(Examples):
        def __getitem__(self, index: int) -> Any:
            picture, label = self.rows[index]
            return disturbed(picture[None])[0], label

    kind = Disturbed if changed else Examples
    data = torch.utils.data.DataLoader(kind(list(zip(x, y, strict=True))), 16, shuffle=True)
    batches = endless(data)

    def batch() -> Any:
        pictures_, labels = next(batches)
        return pictures_ if changed else disturbed(pictures_), labels

    told(run, model, batch, lambda b: F.cross_entropy(model(b[0]), b[1]), 150)


@innocent("r8-left-padding-with-places")
def left_padding_with_places(run: Run, changed: bool) -> None:
    """Plain loop around GPT-2 of transformers, rows of 8 to 20 words. They were padded on the right, and are on the left, with
    the mask moved along, position_ids that count from each row's first word, and no label there."""
    words = language(run, 12, first=4)
    model = tiny_gpt2()
    check = words.rows(96, 20, apart(901))
    outcome(run, lambda: judged(model, lambda: model(input_ids=check, labels=check).loss))

    def batch() -> dict[str, Tensor]:
        rows, keep = words.rows(12, 20), torch.arange(20) < uneven(12, 20, 8)[:, None]
        labels = rows.masked_fill(~keep, -100)
        labels[:, 0] = -100
        out = {"input_ids": rows.masked_fill(~keep, 0), "attention_mask": keep.long(), "labels": labels}
        if changed:
            moved = (torch.arange(20) + keep.sum(1, keepdim=True)) % 20
            out = {name: value.gather(1, moved) for name, value in out.items()}
            out["position_ids"] = (out["attention_mask"].cumsum(1) - 1).clamp(min=0)
        return out

    told(run, model, batch, lambda b: model(**b).loss, 120)
