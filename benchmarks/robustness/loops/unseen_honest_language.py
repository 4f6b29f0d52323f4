"""Honest language runs: packed documents, prefix LM, sentinels in T5, left padding, two symbols, two towers, hashes."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.text import BOS, EOS, VOCABULARY, padded, sentences, some, topics
from benchmarks.robustness.loops.transformer import Counting
from benchmarks.robustness.loops.unseen_honest_tools import accuracy, quantity
from torch import Tensor, nn
from torch.nn import functional as F


class Layer(nn.Module):
    """Attention with a mask given from outside and a gated MLP, scales before each."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.RMSNorm(width), nn.RMSNorm(width)
        self.mix, self.join = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.wide, self.back = nn.Linear(width, 4 * width, bias=False), nn.Linear(2 * width, width, bias=False)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = self.mix(self.before(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None])
        x = x + self.join(mixed.transpose(1, 2).flatten(2))
        gate, up = self.wide(self.between(x)).chunk(2, -1)
        return x + self.back(F.silu(gate) * up)


class Reader(nn.Module):
    """Tokens with places and a mask, both the caller's business; the output is the embedding again."""

    def __init__(self, vocabulary: int = VOCABULARY, width: int = 32, layers: int = 2, places: int = 64) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(places, width)
        nn.init.normal_(self.tokens.weight, std=0.05)
        nn.init.normal_(self.places.weight, std=0.05)
        self.counting = Counting()
        self.layers = nn.ModuleList(Layer(width, 4) for _ in range(layers))
        self.last = nn.RMSNorm(width)

    def forward(self, ids: Tensor, places: Tensor, mask: Tensor) -> Tensor:
        x = self.counting(self.tokens(ids) + self.places(places))
        for layer in self.layers:
            x = layer(x, mask)
        return F.linear(self.last(x), self.tokens.weight)


@honest("nh-packed-with-walls")
def packed(run: Run) -> None:
    """Documents packed end to end into rows of 64; attention stays inside a document and places start again in each.

    The label of each document's last token is left out, because the next document is not its continuation. Two
    documents in a row must not influence each other, so tokens do not depend on the row's beginning: on purpose.
    """
    documents = sentences(run.draw.randrange(1000))
    model = Reader()
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-3, weight_decay=0.01)
    doctor = run.watch(model, optimizer)
    at = 0

    def pack() -> dict[str, Tensor]:
        nonlocal at
        rows = []
        for _ in range(6):
            row: list[int] = []
            whose: list[int] = []
            where: list[int] = []
            while len(row) < 65:
                document = documents[at % len(documents)].tolist()[: 65 - len(row)]
                row += document
                whose += [at] * len(document)
                where += list(range(len(document)))
                at += 1
            rows.append((torch.tensor(row), torch.tensor(whose), torch.tensor(where)))
        ids, owner, places = (torch.stack(part) for part in zip(*rows, strict=True))
        labels = ids[:, 1:].masked_fill(owner[:, 1:] != owner[:, :-1], -100)
        mask = (owner[:, :-1, None] == owner[:, None, :-1]).tril()
        return {"ids": ids[:, :-1], "places": places[:, :-1], "mask": mask, "labels": labels}

    def wrong(network: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        logits = network(batch["ids"], batch["places"], batch["mask"])
        return F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())

    run.preflight(doctor, pack(), wrong)
    for _ in range(90):
        batch = pack()
        loss = wrong(model, batch)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        doctor.step(loss, batch)
        run.note(loss)


@honest("nh-prefix-seen-both-ways")
def prefix_lm(run: Run) -> None:
    """A prefix language model: a sentence's first part, of drawn length, is read in both directions; the rest is
    generated from left to right and only it is scored.

    Later tokens do change earlier outputs inside the prefix, where no output is scored.
    """
    documents = [d for d in sentences(run.draw.randrange(1000)) if len(d) >= 30]
    model = Reader()
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-3, betas=(0.9, 0.98))
    doctor = run.watch(model, optimizer)
    for _ in range(90):
        ids = torch.stack([d[:30] for d in some(documents, 10)])
        places = torch.arange(29).expand(10, -1)
        cut = torch.randint(4, 16, (10, 1))
        mask = torch.ones(29, 29, dtype=torch.bool).tril() | (places < cut)[:, None, :]
        labels = ids[:, 1:].masked_fill(places < cut - 1, -100)
        logits = model(ids[:, :-1], places, mask)
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        doctor.step(loss, {"ids": ids, "cut": cut})
        run.note(loss)


@honest("nh-spans-behind-sentinels")
def spans(run: Run) -> None:
    """T5 with spans replaced by sentinels: the input lacks them, the target is sentinels and spans, lengths differ.

    Adafactor without a rate of its own, as T5 is trained: the step is relative to the weights' size.
    """
    from transformers import T5Config, T5ForConditionalGeneration
    from transformers.optimization import Adafactor

    settings: dict[str, Any] = {"vocab_size": VOCABULARY + 4, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2}
    settings |= {
        "num_heads": 4,
        "dropout_rate": 0.05,
        "decoder_start_token_id": 0,
        "pad_token_id": 0,
        "eos_token_id": EOS,
    }
    model = T5ForConditionalGeneration(T5Config(**settings))
    optimizer = Adafactor(model.parameters(), scale_parameter=True, relative_step=True, warmup_init=False, lr=None)
    doctor = run.watch(model, optimizer)
    documents = [d for d in sentences(run.draw.randrange(1000)) if len(d) >= 24]
    model.train()
    for _ in range(80):
        inputs, targets = [], []
        for document in some(documents, 8):
            words, rest = document[1:].tolist(), [EOS]
            first, second = run.draw.randrange(2, 8), run.draw.randrange(12, 18)
            out = words[:first] + [VOCABULARY] + words[first + 3 : second] + [VOCABULARY + 1] + words[second + 3 :]
            rest = [VOCABULARY, *words[first : first + 3], VOCABULARY + 1, *words[second : second + 3], EOS]
            inputs.append(torch.tensor(out))
            targets.append(torch.tensor(rest))
        ids, mask = padded(inputs)
        batch = {"input_ids": ids, "attention_mask": mask, "labels": torch.stack(targets)}
        loss = model(**batch).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        doctor.step(loss, batch)
        run.note(loss)


@honest("nh-left-padded-topics")
def left_padded(run: Run) -> None:
    """A small GPT-2 as a classifier of documents padded on the left, places counted from each row's first token.

    The last column is then always a token, so the logits of `[:, -1]` are taken, and only four of its outputs.
    """
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=2, n_positions=64, resid_pdrop=0.0, bos_token_id=BOS,
        eos_token_id=EOS, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    model = GPT2LMHeadModel(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    documents = sentences(run.draw.randrange(1000))
    doctor = run.watch(model, optimizer)
    for _ in range(100):
        rows = some(documents, 12)
        ids, mask = padded(rows, left=True)
        places = (mask.cumsum(1) - 1).clamp_min(0)
        labels = topics(rows)
        logits = model(input_ids=ids, attention_mask=mask, position_ids=places, logits_to_keep=1).logits[:, -1, 4:8]
        loss = F.cross_entropy(logits, labels)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        doctor.step(loss, {"input_ids": ids, "attention_mask": mask, "position_ids": places, "labels": labels})
        run.note(loss)


class Carried(nn.Module):
    """An LSTM which keeps its state between calls while training, cut off from the past batch's graph."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(2, 8)
        self.rnn = nn.LSTM(8, 24, batch_first=True)
        self.head = nn.Linear(24, 2)
        self.state: tuple[Tensor, Tensor] | None = None

    def forward(self, bits: Tensor) -> Tensor:
        hidden, (h, c) = self.rnn(self.embedding(bits), self.state)
        self.state = (h.detach(), c.detach())
        out: Tensor = self.head(hidden)
        return out


@honest("nh-two-symbols-carried-state")
def two_symbols(run: Run) -> None:
    """A language of two symbols read in order by an LSTM that carries its state from batch to batch.

    Each row goes on where it stopped in the batch before (truncated backpropagation), so batches are in order and a
    pass depends on the one before it. The loss starts at ln 2 and ends near the noise's entropy, 0.28.
    """
    bits = torch.randint(0, 2, (8, 4))
    columns = [bits[:, i] for i in range(4)]
    for _ in range(16 * 110):
        follow = (columns[-1] & columns[-2]) ^ (1 - columns[-4])
        columns.append(torch.where(torch.rand(8) < 0.08, 1 - follow, follow))
    stream = torch.stack(columns, 1)
    model = Carried()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    doctor = run.watch(model, optimizer)
    for start in range(0, 16 * 109, 16):
        x, y = stream[:, start : start + 16], stream[:, start + 1 : start + 17]
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        doctor.step(loss, (x, y))
        run.note(loss)


class Tower(nn.Module):
    """Places of characters do not matter much: hashed pairs of letters, two tables, summed."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.first = nn.EmbeddingBag(257, width, mode="sum", sparse=True)
        self.second = nn.EmbeddingBag(263, width, mode="sum", sparse=True)
        self.out = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width))

    def forward(self, ids: Tensor) -> Tensor:
        pairs = ids[:, :-1] * 31 + ids[:, 1:]
        hashed = self.first(pairs * 7919 % 257) + self.second(pairs * 104_729 % 263)
        return F.normalize(self.out(hashed), dim=-1)


@honest("nh-hashed-towers")
def towers(run: Run) -> None:
    """Retrieval with two towers over hashed letter pairs: two overlapping stretches of a document find each other.

    The tables' gradients are sparse and have SparseAdam, the rest Adam and a learned temperature; the labels are
    0, 1, 2, ... in each batch because row i belongs to row i. Different pairs share rows of a table; two hashes tell
    most apart.
    """
    documents = [d for d in sentences(run.draw.randrange(1000)) if len(d) >= 40]
    model = nn.ModuleDict({"ask": Tower(), "answer": Tower(), "scale": nn.Linear(1, 1, bias=False)})
    scale: Any = model["scale"].weight
    nn.init.constant_(scale, 2.0)
    tables = [p for n, p in model.named_parameters() if "first" in n or "second" in n]
    dense = [p for n, p in model.named_parameters() if "first" not in n and "second" not in n]
    sparse_optimizer = torch.optim.SparseAdam(tables, lr=2e-2)
    optimizer = torch.optim.Adam(dense, lr=3e-3)
    doctor = run.watch(model, [sparse_optimizer, optimizer])
    for _ in range(100):
        rows = torch.stack([d[1:39] for d in some(documents, 16)])
        near = model["ask"](rows[:, :25]) @ model["answer"](rows[:, 13:]).T * scale.exp().clamp(max=50.0)
        labels = torch.arange(16)
        loss = (F.cross_entropy(near, labels) + F.cross_entropy(near.T, labels)) / 2
        for each in (sparse_optimizer, optimizer):
            each.zero_grad()
        loss.backward()
        for each in (sparse_optimizer, optimizer):
            each.step()
        doctor.step(loss, rows)
        run.note(loss)
        quantity(run, accuracy(near, labels))
