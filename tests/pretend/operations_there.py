"""Steps that are taken on a device are recorded and held as those of the processor, its own attention too."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import limpid
import pretend
from limpid.operations.report import Report
from pretend import kernels

aten = torch.ops.aten
WORDS, WIDTH, HEADS, LENGTH = 37, 48, 3, 24
Attend = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


@pytest.fixture(autouse=True)
def device() -> None:
    kernels.install()


def by_model(kind: str) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    if kind == "gpt2":
        none = {"bos_token_id": None, "eos_token_id": None}
        sizes = GPT2Config(vocab_size=WORDS, n_embd=WIDTH, n_layer=2, n_head=HEADS, n_positions=LENGTH, **none)
        return GPT2LMHeadModel(sizes)
    small = {"hidden_size": WIDTH, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": HEADS}
    return LlamaForCausalLM(LlamaConfig(vocab_size=WORDS, **small))


def recorded(net: nn.Module, where: str, logits: Callable[[Tensor], Tensor], bf16: bool, fused: bool) -> Report:
    optimizer = torch.optim.AdamW(net.to(where).parameters(), lr=3e-3, fused=fused)
    ids = torch.randint(WORDS, (4, LENGTH), generator=torch.Generator().manual_seed(1)).to(where)
    with limpid.recording(net, optimizer) as step:
        with torch.autocast(where, torch.bfloat16, enabled=bf16):
            loss = F.cross_entropy(logits(ids)[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
    return step.verify()


@pytest.mark.parametrize(
    ("kind", "bf16", "fused"), [("gpt2", False, False), ("llama", True, False), ("llama", False, True)]
)
def test_a_step_of_a_model_holds(kind: str, bf16: bool, fused: bool) -> None:
    net = by_model(kind)
    report = recorded(net, pretend.NAME, lambda ids: net(ids, use_cache=False).logits, bf16, fused)
    assert not report.wrong, report
    assert report.checked > 0.99, [call.operation for call in report.calls if call.check.name == "UNCHECKED"]


class OneLayer(nn.Module):
    """Attention by a kernel that is called by its name."""

    def __init__(self, attend: Attend) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tokens, self.three = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.head, self.bias = nn.Linear(WIDTH, WORDS), nn.Parameter(torch.randn(1, HEADS, LENGTH, LENGTH))
        self.attend = attend

    def forward(self, ids: Tensor) -> Tensor:
        three = self.three(self.tokens(ids)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        query, key, value = (one.contiguous() for one in three)
        bias = self.bias.to(query.dtype).expand(len(ids), -1, -1, -1)
        return self.head(self.attend(query, key, value, bias).transpose(1, 2).flatten(-2))


KERNELS: dict[str, Attend] = {
    "flash": lambda q, k, v, bias: aten._scaled_dot_product_flash_attention(q, k, v, 0.0, True)[0],
    "efficient": lambda q, k, v, bias: aten._scaled_dot_product_efficient_attention(q, k, v, None, True, 0.0, True)[0],
    "efficient with a bias": lambda q, k, v, bias: aten._scaled_dot_product_efficient_attention(q, k, v, bias, True)[0],
    "cudnn": lambda q, k, v, bias: aten._scaled_dot_product_cudnn_attention(q, k, v, None, True, 0.0, True)[0],
}


def test_a_batch_norm_of_cudnn_holds() -> None:
    torch.manual_seed(0)
    net = nn.ModuleDict(
        {"tokens": nn.Embedding(WORDS, WIDTH), "norm": nn.BatchNorm1d(WIDTH), "head": nn.Linear(WIDTH, WORDS)}
    )

    def logits(ids: Tensor) -> Tensor:
        x, norm = net["tokens"](ids).transpose(1, 2).contiguous(), net["norm"]
        learned, averages = (norm.weight, norm.bias), (norm.running_mean, norm.running_var)
        made: Tensor = net["head"](aten.cudnn_batch_norm(x, *learned, *averages, True, 0.1, 1e-5)[0].transpose(1, 2))
        return made

    report = recorded(net, pretend.NAME, logits, bf16=False, fused=False)
    assert not report.wrong, report
    assert report.checked == 1, [call.operation for call in report.calls if call.check.name == "UNCHECKED"]


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("kernel", KERNELS)
def test_attention_of_cuda_holds(kernel: str, bf16: bool) -> None:
    report = recorded(net := OneLayer(KERNELS[kernel]), pretend.NAME, net, bf16, fused=False)
    assert not report.wrong, report
    assert report.checked == 1, [call.operation for call in report.calls if call.check.name == "UNCHECKED"]
    assert sum("dot_product" in call.operation for call in report.calls) == 2
