"""What a loop is meant to do, said in a table: silence where it does, one finding for each thing that it does not."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import limpid
from limpid.doctor.expected.expected import Expected, table
from limpid.doctor.expected.key import KEYS
from limpid.errors import ConfigError

WORDS, LENGTH, ROWS, STEPS = 23, 12, 8, 40
PAD, END = 0, 1
MEANT: dict[str, Any] = {
    "rows": ROWS, "micro_batches": 1, "data_rows": "endless", "padding": "right", "trained": "all", "dropout": 0.0,
    "weights": "float32", "autocast": False, "begins": "drawn", "tied": True, "reads": "past", "padding_hidden": True,
    "taught": "next token", "labels_per_row": [4, LENGTH - 1], "last_token_taught": True, "classes": WORDS,
    "smoothing": 0.0, "formula": "cross-entropy", "reduction": "mean", "label_weights": "alike", "first_loss": [2.5, 4],
    "last_loss": 3.1, "clip": 1.0, "optimizer": "AdamW", "decay": 0.1, "decay_of_vectors": 0.0, "betas": [0.9, 0.95],
    "rate": 3e-3, "schedule": "cosine", "warmup": 5, "final_rate": 0.1, "steps": STEPS,
}  # fmt: skip


def gpt() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    sizes = {"n_embd": 24, "n_layer": 1, "n_head": 2, "n_positions": LENGTH}
    rates = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    ids = {"bos_token_id": END, "eos_token_id": END, "pad_token_id": PAD}
    return GPT2LMHeadModel(GPT2Config(vocab_size=WORDS, use_cache=False, **sizes, **rates, **ids))


def rows(step: int) -> tuple[Tensor, Tensor]:
    """Words that count on from the first, an end, padding on the right; and where there are words."""
    drawn = torch.Generator().manual_seed(step)
    first = torch.randint(2, WORDS, (ROWS, 1), generator=drawn)
    stride = torch.randint(1, 9, (ROWS, 1), generator=drawn)
    ids = 2 + (first + stride * torch.arange(LENGTH)) % (WORDS - 2)
    last = torch.randint(4, LENGTH - 1, (ROWS, 1), generator=drawn)
    ids = torch.where(torch.arange(LENGTH) == last, END, ids)
    mask = torch.arange(LENGTH) <= last
    return ids.where(mask, PAD), mask.long()


def share(step: int) -> float:
    """Of the peak: five steps up, a cosine down to a tenth."""
    import math

    if step < 5:
        return (step + 1) / 5
    return 0.1 + 0.45 * (1 + math.cos(math.pi * (step - 5) / (STEPS - 5)))


def found(
    expected: Any,
    *,
    change: Callable[[Any], Any] = lambda model: model,
    labels: Callable[[Tensor, Tensor], Tensor] = lambda ids, mask: ids.masked_fill(mask == 0, -100)[:, 1:],
    loss: Callable[[Tensor, Tensor], Tensor] = lambda z, y: F.cross_entropy(z.flatten(0, 1), y.flatten()),
    rate: Callable[[int], float] = share,
    clip: float | None = 1.0,
    decay: float = 0.1,
) -> dict[str, str]:
    """By key, what is said of a loop with these parts."""
    model = gpt()
    change(model)
    named = [p for p in model.parameters() if p.requires_grad]
    groups = [{"params": [p for p in named if p.ndim > 1], "weight_decay": decay},
              {"params": [p for p in named if p.ndim < 2], "weight_decay": 0.0}]  # fmt: skip
    optimizer = torch.optim.AdamW(groups, lr=3e-3, betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    with limpid.watch(model, optimizer, say=False, expected=expected) as doctor:
        for step in range(STEPS):
            ids, mask = rows(step)
            value = loss(model(input_ids=ids, attention_mask=mask).logits[:, :-1], labels(ids, mask))
            optimizer.zero_grad()
            value.backward()
            if clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            doctor.step(value, ids)
            schedule.step()
    assert dict(doctor.skipped) == {}
    return {one.evidence["key"]: one.says for one in doctor.findings if one.rule == "not-as-expected"}


def test_a_loop_that_does_as_it_is_meant_is_told_nothing() -> None:
    assert found(MEANT) == {}


def ends_untaught(ids: Tensor, mask: Tensor) -> Tensor:
    return ids.masked_fill((mask == 0) | (ids == END), -100)[:, 1:]


def frozen(model: Any) -> None:
    model.transformer.wpe.weight.requires_grad_(False)


def sums(z: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(z.flatten(0, 1), y.flatten(), reduction="sum")


def smoothed(z: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(z.flatten(0, 1), y.flatten(), label_smoothing=0.1)


@pytest.mark.parametrize(
    ("key", "mistake"),
    [
        ("last_token_taught", {"labels": ends_untaught}),
        ("trained", {"change": frozen}),
        ("reduction", {"loss": sums}),
        ("smoothing", {"loss": smoothed}),
        ("schedule", {"rate": lambda step: 0.5 * share(step)}),
        ("rate", {"rate": lambda step: 2 * share(step)}),
        ("clip", {"clip": None}),
        ("clip", {"clip": 0.1}),
        ("decay", {"decay": 0.01}),
    ],
)
def test_what_it_does_otherwise_is_told(key: str, mistake: dict[str, Any]) -> None:
    said = found(MEANT, **mistake)
    assert key in said, said
    assert said[key].startswith(f"{key} ({KEYS[key].means}): ")


@pytest.mark.parametrize(
    "otherwise",
    [
        {"rows": 5, "padding": "left", "trained": ["wte"], "dropout": 0.1, "weights": "bfloat16"},
        {"micro_batches": 4, "begins": "loaded", "tied": False, "reads": "both sides", "betas": [0.9, 0.999]},
        {"padding_hidden": False, "taught": "own token", "classes": 24, "steps": 20, "first_loss": 0.7},
        {"autocast": "bfloat16", "labels_per_row": 11, "label_weights": "uneven", "rate": {"wte": 1e-4}},
        {"last_loss": 0.01, "labelled_share": 0.15, "optimizer": "SGD"},
    ],
    ids=lambda otherwise: ", ".join(otherwise),
)
def test_each_thing_is_seen_and_nothing_else(otherwise: dict[str, Any]) -> None:
    assert found(otherwise).keys() == otherwise.keys()


def test_it_is_read_from_a_file_by_parts(tmp_path: Path) -> None:
    file = tmp_path / "loop.toml"
    file.write_text('dropout = 0.0\n[labels]\ntaught = "own token"\n[gradient]\nclip = 1.0\n')
    assert set(found(file)) == {"taught"}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"clips": 1.0}, "nothing that can be expected of a loop is called 'clips': clip is meant, perhaps"),
        ({"clip": "yes"}, "expected clip is 'yes': it takes a number from 0 on, or false"),
        ({"clip": -1}, "expected clip is -1: it takes a number from 0 on, or false"),
        ({"rate": 1e-3, "update": {"rate": 2e-3}}, "expected rate is said twice, 0.001 and 0.002: leave one of them"),
        ({"labels": {"rate": 1e-3}}, "expected rate stands under [labels], and is of the update: move it there"),
        ({"reads": "future"}, 'expected reads is \'future\': it takes "past", "both sides" or "own place"'),
        ({"betas": [0.9]}, "expected betas is [0.9]: it takes two numbers"),
        ({"betas": [0.9, float("nan")]}, "expected betas is [0.9, nan]: it takes two numbers"),
        ({"rate": {}}, "expected rate is {}: it takes a number from 0 on, or a table of words and such"),
        ({"schedule": "linear"}, "expected schedule is judged with rate, of which nothing is said: say it, too"),
        ({"warmup": 10}, "expected warmup is judged with schedule, of which nothing is said"),
        (
            {"trained": ["bias", "lora"]},
            "expected trained says 'lora', which stands in no parameter's name, as in weight",
        ),
        ({"rate": {"head": 1e-3}}, "expected rate says 'head', which stands in no parameter's name, as in weight"),
        ({"labels": 3}, "nothing that can be expected of a loop is called 'labels'"),
        ("nowhere.toml", "nowhere.toml holds nothing that is expected of a loop: No such file or directory"),
    ],
)
def test_a_mistake_in_what_is_said_is_refused(given: Any, says: str) -> None:
    with pytest.raises(ConfigError) as error:
        limpid.watch(nn.Linear(2, 2), say=False, expected=given)
    assert str(error.value).startswith(says)
    assert "\n" not in str(error.value)


def test_the_page_has_the_table_of_all_that_can_be_said() -> None:
    page = (Path(__file__).parents[2] / "docs/expected.md").read_text(encoding="utf-8")
    assert f"expected -->\n\n{table()}\n\n<!-- end" in page


def test_what_is_said_and_done_is_doubted_by_no_rule() -> None:
    """A frozen table of positions is a finding of its own, unless it is said."""
    for expected, doubted in (({}, True), ({"trained": ["h.", "ln_f", "wte"]}, False)):
        model = gpt()
        kept = [p for name, p in model.named_parameters() if "wpe" not in name]
        optimizer = torch.optim.AdamW(kept, lr=1e-3)
        with limpid.watch(model, optimizer, say=False, expected=expected) as doctor:
            for step in range(3):
                ids, mask = rows(step)
                loss = model(input_ids=ids, attention_mask=mask, labels=ids.masked_fill(mask == 0, -100)).loss
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                doctor.step(loss, ids)
        assert ("parameters-not-in-optimizer" in {one.rule for one in doctor.findings}) == doubted


@pytest.mark.parametrize(
    ("said", "rule", "settled"),
    [
        ({"reads": "both sides"}, "not-causal", True),
        ({"reads": "past"}, "not-causal", False),
        ({"reduction": "sum"}, "loss-summed", True),
        ({"reduction": "mean"}, "loss-summed", False),
        ({"last_token_taught": False}, "stop-not-learned", True),
        ({"last_token_taught": True}, "stop-not-learned", False),
        ({"data_rows": 8}, "batch-repeats", True),
        ({"data_rows": "endless"}, "batch-repeats", False),
        ({"trained": "all"}, "parameters-not-in-optimizer", False),
    ],
)
def test_a_rule_is_settled_by_what_it_doubts_and_not_by_its_opposite(
    said: dict[str, Any], rule: str, settled: bool
) -> None:
    assert Expected.read(said).settles(rule) == settled


def test_what_is_seen_to_be_otherwise_settles_nothing() -> None:
    expected = Expected.read({"trained": ["head"]})
    expected.told.add("trained")
    assert not expected.settles("parameters-not-in-optimizer")
