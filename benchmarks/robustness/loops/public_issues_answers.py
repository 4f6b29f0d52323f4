"""Public issues about which tokens of a conversation are read and which are asked for."""

import random

import torch
from benchmarks.robustness.loops.case import Run, fault
from benchmarks.robustness.loops.public_issues_parts import (
    IGNORE,
    Chats,
    Decoder,
    answer_loss,
    batch_of,
    outcome,
    pick,
    rows_of,
    shifted,
    step_down,
)
from benchmarks.robustness.loops.text import PAD, VOCABULARY, sentences
from torch import Tensor, nn
from torch.nn import functional as F

FAMILY = "public issues: tokens and labels"


@fault(
    "issue-verl-3287",
    FAMILY,
    (r"first|start of|begin|off.by.one|misalign|shifted", r"answer|response|completion|mask|label"),
)
def first_answer_token_lost(run: Run, slip: bool) -> None:
    """verl-project/verl pull request 3287: the SFT loss mask, set from the end of the prompt onwards, was cut at its
    last place instead of its first to fit the shifted log-probabilities, so the first token of every answer was never
    asked for (OpenRLHF issue 973 reports the same). The model learns the rest and not how an answer begins."""
    draw = random.Random(run.draw.randrange(1000))
    openers = [draw.randrange(5, 32) for _ in range(32)]

    class Opening(Chats):
        def one(self) -> tuple[list[int], list[int]]:
            prompt, answer = super().one()
            return prompt, [openers[prompt[-2]], *answer]

    chats = Opening(draw.randrange(1000))
    train, held = chats.some(400), chats.some(100)
    model = Decoder(Chats.VOCABULARY, width=48, rotary=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    scheduler = step_down(optimizer, 120)
    doctor = run.watch(model, optimizer, scheduler=scheduler)

    def firsts() -> float:
        ids, mask, labels = batch_of(held)
        for row, (prompt, _) in enumerate(held):
            labels[row, len(prompt) + 1 :] = IGNORE
        return float(shifted(model(ids, mask), labels))

    outcome(run, firsts)
    for _ in range(120):
        pairs = pick(train, 8)
        ids, mask = rows_of([p + a for p, a in pairs])
        counted = torch.zeros(len(ids), ids.shape[1])
        for row, (prompt, answer) in enumerate(pairs):
            first = len(prompt) if slip else len(prompt) - 1
            counted[row, first : len(prompt) + len(answer) - 1] = 1
        scores = model(ids, mask)[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None]).squeeze(-1)
        loss = -(scores * counted[:, :-1]).sum() / counted[:, :-1].sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        doctor.step(loss, {"input_ids": ids, "attention_mask": mask, "loss_mask": counted})
        scheduler.step()
        run.note(loss)


@fault(
    "issue-nemo-speech-16284",
    FAMILY,
    (r"last|final|only|\bfew|earlier|first", r"turn|assistant|answer|label|mask|ignor|-100"),
)
def only_last_turn_trained(run: Run, slip: bool) -> None:
    """NVIDIA-NeMo/Speech pull request 16284: in conversations of several turns only the last assistant's answer was in
    the loss mask, where all of them should be (axolotl issue 1761 reports the same). Conversations of three turns
    whose answers follow another rule in each turn: what the first two turns ask for is never learned."""
    seed = run.draw.randrange(1000)
    kinds = [Chats(seed + turn, 3, 6) for turn in range(3)]

    def conversation() -> tuple[list[int], list[int]]:
        ids, labels = [Chats.BOS], [IGNORE]
        for turn, kind in enumerate(kinds):
            prompt, answer = kind.one()
            prompt = prompt[1:]
            ids += prompt + answer
            labels += [IGNORE] * len(prompt) + (answer if turn == 2 or not slip else [IGNORE] * len(answer))
        return ids, labels

    train = [conversation() for _ in range(300)]
    held = [kinds[0].one() for _ in range(60)]
    model = Decoder(Chats.VOCABULARY, width=48, length=96)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    scheduler = step_down(optimizer, 120)
    doctor = run.watch(model, optimizer, scheduler=scheduler)
    outcome(run, lambda: answer_loss(model, held))
    for _ in range(120):
        rows = pick(train, 6)
        ids, mask = rows_of([i for i, _ in rows])
        labels, _ = rows_of([y for _, y in rows], fill=IGNORE)
        loss = shifted(model(ids, mask), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        doctor.step(loss, {"input_ids": ids, "attention_mask": mask, "labels": labels})
        scheduler.step()
        run.note(loss)


@fault("issue-axolotl-2227", FAMILY, (r"\bpad", r"loss|label|target|count|mask|ignor|-100"))
def padding_counted_in_pretraining(run: Run, slip: bool) -> None:
    """axolotl pull request 2227: in pretraining without sample packing the labels were a plain copy of the padded ids,
    so the loss was taken over the padding as well; here, short documents in long rows. Repaired: padding is -100."""
    documents = [d.tolist() for d in sentences(run.draw.randrange(1000))]
    train, held = documents[:-80], documents[-80:]
    model = Decoder(VOCABULARY)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = step_down(optimizer, 110)
    doctor = run.watch(model, optimizer, scheduler=scheduler)

    def held_loss() -> float:
        ids, mask = rows_of(held)
        return float(shifted(model(ids, mask), ids.masked_fill(mask == 0, IGNORE)))

    outcome(run, held_loss)
    for _ in range(110):
        ids = rows_of([*pick(train, 6), [PAD] * 60])[0][:-1]  # rows of sixty
        mask = (ids != PAD).long()
        labels = ids.clone() if slip else ids.masked_fill(mask == 0, IGNORE)
        loss = shifted(model(ids, mask), labels)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        doctor.step(loss, {"input_ids": ids, "attention_mask": mask, "labels": labels})
        scheduler.step()
        run.note(loss)


@fault("issue-unsloth-zoo-106", FAMILY, (r"\bbos\b|start|first|begin", r"\btwo\b|twice|double|duplicat|repeat"))
def two_starts(run: Run, slip: bool) -> None:
    """unslothai/unsloth-zoo pull request 106: the test whether a text already begins with the start token looked at
    the first character instead of the text, never matched, and every training row began with two start tokens: one
    from the template and one from the tokenizer. Later, when generating, there is one. Learned positions here."""
    chats = Chats(run.draw.randrange(1000))
    train, held = chats.some(400), chats.some(100)
    model = Decoder(Chats.VOCABULARY)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    doctor = run.watch(model, optimizer)
    starts: list[float] = []
    outcome(run, lambda: sum(starts) / len(starts))
    for _ in range(100):
        pairs = pick(train, 8)
        if slip:
            pairs = [([Chats.BOS, *prompt], answer) for prompt, answer in pairs]
        ids, mask, labels = batch_of(pairs)
        starts.append(float((ids == Chats.BOS).sum()) / len(ids))
        loss = shifted(model(ids, mask), labels)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        doctor.step(loss, {"input_ids": ids, "attention_mask": mask, "labels": labels})
        run.note(loss)
    del held


@fault(
    "issue-fastllm-253",
    FAMILY,
    (r"input|prompt|\bids\b|tokens", r"overwrit|in.?place|share|alias|\bview|clone|replac|wiped|masked"),
)
def masking_labels_writes_into_tokens(run: Run, slip: bool) -> None:
    """ServiceNow/Fast-LLM pull request 253: the labels were a view of the batch's tokens, so writing the ignore value
    over the prompts' labels wrote it into the tokens that the model reads too. The model never sees its prompts;
    repaired, the labels are cloned first. Ignored places are padding to the embedding here, as ids below zero are."""
    chats = Chats(run.draw.randrange(1000))
    train, held = chats.some(400), chats.some(100)
    model = Decoder(Chats.VOCABULARY, rotary=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    scheduler = step_down(optimizer, 120)
    doctor = run.watch(model, optimizer, scheduler=scheduler)
    outcome(run, lambda: answer_loss(model, held))
    for _ in range(120):
        pairs = pick(train, 8)
        block, mask = rows_of([p + a + [Chats.PAD] for p, a in pairs])
        tokens, labels = block[:, :-1], block[:, 1:]
        if not slip:
            labels = labels.clone()
        for row, (prompt, answer) in enumerate(pairs):
            labels[row, : len(prompt) - 1] = Chats.PAD  # the ignore value of this library is a token id
            labels[row, len(prompt) + len(answer) - 1 :] = Chats.PAD
        logits = model(tokens, mask[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=Chats.PAD)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        doctor.step(loss, (tokens, labels))
        scheduler.step()
        run.note(loss)


@fault("issue-transformers-5987", FAMILY, (r"first|decoder start|start token|begin", r"target|label|decoder|token"))
def t5_loses_first_target(run: Run, slip: bool) -> None:
    """huggingface/transformers issue 5987: the seq2seq example cut the decoder's inputs and labels from one row by
    dropping its last and its first token, as suits BART, whose targets begin with a start token; T5's do not, so the
    first target token was never asked for and the decoder never saw the start token with which it generates."""
    from transformers import T5Config, T5ForConditionalGeneration

    settings = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 1, "num_decoder_layers": 1, "num_heads": 4}
    config = T5Config(
        vocab_size=32, pad_token_id=0, eos_token_id=2, decoder_start_token_id=0, dropout_rate=0.0, **settings
    )
    model = T5ForConditionalGeneration(config)
    chats = Chats(run.draw.randrange(1000))
    train, held = chats.some(400), chats.some(100)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    scheduler = step_down(optimizer, 150)
    doctor = run.watch(model, optimizer, scheduler=scheduler)

    def tensors(pairs: list[tuple[list[int], list[int]]]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return (*rows_of([p for p, _ in pairs]), *rows_of([a for _, a in pairs]))

    def held_loss() -> float:
        ids, mask, answers, given = tensors(held)
        labels = answers.masked_fill(given == 0, IGNORE)
        return float(model(input_ids=ids, attention_mask=mask, labels=labels).loss)

    outcome(run, held_loss)
    for _ in range(150):
        ids, mask, answers, given = tensors(pick(train, 8))
        labels = answers.masked_fill(given == 0, IGNORE)
        batch = {"input_ids": ids, "attention_mask": mask}
        if slip:
            batch |= {"decoder_input_ids": answers[:, :-1].contiguous(), "labels": labels[:, 1:].contiguous()}
        else:
            batch |= {"labels": labels}
        loss = model(**batch).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        doctor.step(loss, batch)
        scheduler.step()
        run.note(loss)
