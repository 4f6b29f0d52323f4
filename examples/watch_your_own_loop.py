"""A plain PyTorch loop with a fault in it, and the doctor beside it: what is wrong, what proves it, what to change.

python examples/watch_your_own_loop.py
"""

import torch
from torch import nn

import limpid

torch.manual_seed(0)
VOCABULARY, WIDTH, CONTEXT = 50, 64, 32


class Model(nn.Module):
    """One block of a transformer, in whose attention somebody forgot the causal mask."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.position = nn.Embedding(CONTEXT, WIDTH)
        self.block = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens) + self.position(torch.arange(tokens.shape[1]))
        return self.head(self.block(x))


def loss_of(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    logits = model(batch[:, :-1])
    return nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())


model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
batches = [torch.randint(0, VOCABULARY, (8, CONTEXT + 1)) for _ in range(20)]

doctor = limpid.watch(model, optimizer)
doctor.preflight(batches[0], loss=loss_of)  # before the first step: nothing has been paid for yet
for batch in batches:
    optimizer.zero_grad()
    loss = loss_of(model, batch)
    loss.backward()
    optimizer.step()
    doctor.step(loss, batch)
doctor.close()
print(f"\n{doctor.description}")  # to hold against what the loop is meant to do
print(f"\n{len(doctor.findings)} finding(s); the first names {doctor.findings[0].rule}")
