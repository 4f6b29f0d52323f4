"""Other people's loops on a graphics processor: watched, described, recorded; named what broke, and nothing changed."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import limpid

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
]
DEVICE = "cuda"
WORDS = 37


def rows(number: int) -> Tensor:
    """Sixteen rows in which each word but the first follows from the one before."""
    drawn = torch.Generator().manual_seed(number)
    first, steps = torch.randint(0, WORDS, (16, 1), generator=drawn), torch.randint(1, 4, (16, 1), generator=drawn)
    return ((first + steps * torch.arange(24)) % WORDS).to(DEVICE)


def model(kind: str) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    if kind == "gpt2":
        sizes = GPT2Config(vocab_size=WORDS, n_embd=48, n_layer=2, n_head=3, n_positions=24, use_cache=False)
        return GPT2LMHeadModel(sizes).to(DEVICE)
    small = {"hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 3}
    return LlamaForCausalLM(LlamaConfig(vocab_size=WORDS, use_cache=False, **small)).to(DEVICE)


def trained(kind: str, *, watched: bool, bf16: bool, fault: str = "", steps: int = 30) -> tuple[Any, list[float], Any]:
    """A plain loop, with a mistake where one is named."""
    net = model(kind)
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3, fused=True)
    doctor = limpid.watch(net, optimizer, say=False) if watched else None
    losses = []
    for number in range(steps):
        ids = rows(number)
        if fault == "infinite weight" and number == 9:
            with torch.no_grad():
                next(p for p in net.parameters() if p.ndim == 2)[3].fill_(torch.inf)
        with torch.autocast(DEVICE, torch.bfloat16, enabled=bf16):
            logits = net(ids).logits
            taught = ids if fault == "own token" else ids[:, 1:]
            loss = F.cross_entropy(logits[:, : taught.shape[1]].flatten(0, 1).float(), taught.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        if fault != "gradients kept":
            optimizer.zero_grad(set_to_none=True)
        losses.append(float(loss.detach()))
        if doctor is not None:
            doctor.step(loss, ids)
    return net, losses, doctor


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_nothing_is_changed_and_nobody_accused(kind: str, bf16: bool) -> None:
    alone, losses, _ = trained(kind, watched=False, bf16=bf16)
    net, beside, doctor = trained(kind, watched=True, bf16=bf16)
    assert losses == beside
    for name, parameter in alone.named_parameters():
        assert torch.equal(parameter, net.get_parameter(name)), name
    assert [one.rule for one in doctor.findings if one.severity != "notice"] == []
    assert dict(doctor.skipped) == {}


@pytest.mark.parametrize(
    ("fault", "named"),
    [("infinite weight", "embed_tokens.weight"), ("own token", "own"), ("gradients kept", "zero_grad")],
)
def test_what_broke_is_named(fault: str, named: str) -> None:
    *_, doctor = trained("llama", watched=True, bf16=False, fault=fault)
    first = next(one for one in doctor.findings if one.severity != "notice")
    assert named in " ".join((first.says, first.where, first.cause, first.fix)), first


def test_it_is_described() -> None:
    *_, doctor = trained("gpt2", watched=True, bf16=True)
    said = str(doctor.description)
    for sentence in ("the next token of its row", "clipped to 1", "autocast bfloat16", "AdamW"):
        assert sentence in said, said


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("kind", ["gpt2", "gpt2 without dropout in attention", "llama"])
def test_its_step_is_recorded_and_holds(kind: str, bf16: bool) -> None:
    """Dropout that a kernel draws inside of attention is all that cannot be known."""
    net = model(kind.split()[0])
    for module in net.modules():
        if "without" in kind and isinstance(getattr(module, "attn_dropout", None), nn.Dropout):
            module.attn_dropout.p = 0.0
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
    ids = rows(0)
    with limpid.recording(net, optimizer) as step:
        with torch.autocast(DEVICE, torch.bfloat16, enabled=bf16):
            loss = F.cross_entropy(net(ids).logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())
        loss.backward()
        optimizer.step()
    report = step.verify()
    assert not report.wrong, report
    unknown = {call.operation for call in report.calls if call.check.name == "UNCHECKED"}
    assert all("scaled_dot_product" in one for one in unknown), unknown
    assert bool(unknown) == (kind == "gpt2")
    assert report.checked > (0.9 if kind == "gpt2" else 0.95)
