"""Public issues about positions."""

import random

import torch
from benchmarks.robustness.loops.case import Run, fault
from benchmarks.robustness.loops.public_issues_parts import Decoder, outcome, step_down
from benchmarks.robustness.loops.text import VOCABULARY, corpus
from torch import Tensor, nn
from torch.nn import functional as F

FAMILY = "public issues: positions"


@fault(
    "issue-transformers-29285",
    FAMILY,
    (r"rope|rotary|position|angle", r"bf16|bfloat16|half|precision|round|same|collaps|coarse|dtype"),
)
def rotary_tables_in_bfloat16(run: Run, slip: bool) -> None:
    """huggingface/transformers pull request 29285: under bfloat16 the rotary embedding's positions and angles were
    computed in bfloat16 as well, which tells integers above 256 apart only in steps of 2, 4, 8: in long contexts
    neighbouring tokens share a position and the loss stays higher. Windows from far within long documents here, with
    the positions that their tokens have there; repaired, the tables are computed in float32."""
    tokens = corpus(run.draw.randrange(1000))
    held = tokens[-6000:]
    model = Decoder(VOCABULARY, rotary=True, table_dtype=torch.bfloat16 if slip else torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = step_down(optimizer, 150)
    doctor = run.watch(model, optimizer, scheduler=scheduler)

    def windows(source: Tensor, starts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        block = torch.stack([source[s : s + 41] for s in starts.tolist()])
        positions = 1024 + (starts % 2048)[:, None] + torch.arange(40)
        return block[:, :-1], block[:, 1:], positions

    def far() -> float:
        x, y, positions = windows(held, torch.arange(0, 5900, 41))
        model.eval()
        return float(F.cross_entropy(model(x, positions=positions).flatten(0, 1), y.flatten()))

    outcome(run, far)
    for _ in range(150):
        x, y, positions = windows(tokens[:-6000], torch.randint(0, len(tokens) - 6100, (8,)))
        loss = F.cross_entropy(model(x, positions=positions).flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        doctor.step(loss, {"input_ids": x, "labels": y, "position_ids": positions})
        scheduler.step()
        run.note(loss)


class Forms:
    """Records of fields: which letter may stand in a place depends on the place and on the letter before."""

    def __init__(self, seed: int) -> None:
        draw = random.Random(seed)
        self.steps = [draw.randrange(1, 24) for _ in range(20)]
        self.draw = draw

    def one(self) -> list[int]:
        record = [1, self.draw.randrange(2, 26)]
        for step in self.steps[: self.draw.randrange(8, 18)]:
            record.append(2 + (record[-1] - 2 + step + (self.draw.random() < 0.05)) % 24)
        return record


@fault(
    "issue-llamafactory-7318",
    FAMILY,
    (r"position", r"pack|document|reset|restart|segment|record|offset|boundar|continu"),
)
def packed_positions_run_on(run: Run, slip: bool) -> None:
    """hiyouga/LLaMA-Factory pull request 7318: with neat packing, the attention mask kept the documents of a row
    apart but no position ids were passed, so positions counted on through the row and every document but the first
    was read at places where it never stands when it comes alone. Repaired: positions start anew in each document."""
    forms = Forms(run.draw.randrange(1000))
    train, held = [forms.one() for _ in range(500)], [forms.one() for _ in range(120)]
    model = Decoder(26, width=48, length=80)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    scheduler = step_down(optimizer, 170)
    doctor = run.watch(model, optimizer, scheduler=scheduler)

    def alone() -> float:
        model.eval()
        losses = []
        for record in held:
            ids = torch.tensor([record])
            losses.append(F.cross_entropy(model(ids)[0, :-1], ids[0, 1:]))
        return float(torch.stack(losses).mean())

    outcome(run, alone)
    for _ in range(170):
        ids = torch.zeros(6, 72, dtype=torch.long)
        pieces = torch.full((6, 72), -1)
        places = torch.zeros(6, 72, dtype=torch.long)
        for row in range(6):
            at = 0
            while True:
                record = train[int(torch.randint(0, len(train), ()))]
                if at + len(record) > 72:
                    break
                here = slice(at, at + len(record))
                ids[row, here], pieces[row, here] = torch.tensor(record), at
                places[row, here] = torch.arange(len(record))
                at += len(record)
        labels = ids[:, 1:].masked_fill((pieces[:, 1:] != pieces[:, :-1]) | (pieces[:, 1:] < 0), -100)
        logits = model(ids, positions=None if slip else places, pieces=pieces)
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels.flatten(), ignore_index=-100)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        batch = {"input_ids": ids, "segment_ids": pieces, "labels": labels}
        doctor.step(loss, batch if slip else batch | {"position_ids": places})
        scheduler.step()
        run.note(loss)
