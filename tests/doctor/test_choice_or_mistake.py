"""Mistakes that accuse at once, each beside a choice that is measured the same way and is asked about."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import limpid
from doctor.bench import LENGTH, VOCAB, Block, Decoder, Loop, batch, groups, mean_loss
from doctor.small_loops import net, table

MISTAKE, CHOICE = True, False


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def accused(doctor: Any, rule: str) -> list[bool]:
    """Whether each finding of a rule accuses; choices are notices that are said."""
    found = [one for one in doctor.findings if one.rule == rule]
    assert all(one.is_said for one in found)
    return [one.severity != "notice" for one in found]


def examined(model: nn.Module, optimizer: Any, given: Any = None, loss: Any = mean_loss, **options: Any) -> Any:
    with limpid.watch(model, optimizer, say=False) as doctor:
        doctor.preflight(given or batch(0), loss=loss, **options)
    return doctor


def squared(model: nn.Module, given: tuple[Tensor, Tensor]) -> Tensor:
    return F.mse_loss(model(given[0])[..., 0], given[1])


def looped(
    model: nn.Module,
    optimizer: Any,
    steps: int = 12,
    loss: Callable[[nn.Module, Any], Tensor] = squared,
    rows: Callable[[int], Any] = lambda number: table(),
    after: Callable[[int], None] = lambda number: None,
) -> Any:
    with limpid.watch(model, optimizer, say=False) as doctor:
        for number in range(steps):
            given = rows(number)
            value = loss(model, given)
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
            doctor.step(value, given)
            after(number)
    return doctor


@pytest.mark.parametrize("kind", [MISTAKE, CHOICE])
def test_gradients_that_stay_as_they_are_or_fade(kind: bool) -> None:
    loop = Loop()

    def fade() -> None:
        for parameter in loop.model.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(0.9)

    loop.clear = (lambda: None) if kind is MISTAKE else fade  # type: ignore[method-assign]
    _, doctor = loop.run(4)
    assert accused(doctor, "gradients-not-cleared") == [kind]


@pytest.mark.parametrize("kind", [MISTAKE, CHOICE])
def test_evaluation_mode_that_is_left_on_or_chosen(kind: bool) -> None:
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 1))
    model.train(kind is MISTAKE)

    def evaluate(number: int) -> None:
        if kind is MISTAKE and number == 4:
            model.eval()
            with torch.no_grad():
                model(table()[0])

    doctor = looped(model, torch.optim.Adam(model.parameters(), 1e-3), after=evaluate)
    assert accused(doctor, "trained-in-eval-mode") == [kind]


@pytest.mark.parametrize("layer", [nn.Dropout(0.1), nn.BatchNorm1d(16)])
@pytest.mark.parametrize("kind", [MISTAKE, CHOICE])
def test_passes_in_training_mode_that_are_judged_or_only_made(kind: bool, layer: nn.Module) -> None:
    model = nn.Sequential(nn.Linear(6, 16), layer, nn.ReLU(), nn.Linear(16, 1))

    def passes(number: int) -> None:
        for _ in range(4 if number % 6 == 5 else 0):
            with torch.no_grad():
                squared(model, table()) if kind is MISTAKE else model(table()[0])

    doctor = looped(model, torch.optim.Adam(model.parameters(), 1e-3), 26, after=passes)
    rule = "dropout-in-evaluation" if isinstance(layer, nn.Dropout) else "statistics-from-evaluation"
    assert accused(doctor, rule)[-1:] == [kind]


@pytest.mark.parametrize("kind", [MISTAKE, CHOICE])
def test_a_loss_is_raised_by_a_fresh_model_or_by_one_that_has_something_to_forget(kind: bool) -> None:
    model = Decoder()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for number in range(40 if kind is CHOICE else 0):
        optimizer.zero_grad()
        mean_loss(model, batch(number)).backward()
        optimizer.step()
    doctor = looped(model, torch.optim.SGD(model.parameters(), 1e-4), 4, lambda m, b: -mean_loss(m, b), batch)
    assert accused(doctor, "gradient-ascent") == [kind]


@pytest.mark.parametrize(
    ("rule", "kind", "settings", "factor"),
    [
        ("betas-swapped", MISTAKE, {"betas": (0.999, 0.9)}, 1.0),
        ("betas-swapped", CHOICE, {"betas": (0.98, 0.9)}, 1.0),
        ("epsilon-dominates", MISTAKE, {}, 1e-9),
        ("epsilon-dominates", CHOICE, {"eps": 0.1}, 1.0),
    ],
)
def test_settings_of_adam(rule: str, kind: bool, settings: dict[str, Any], factor: float) -> None:
    model = Decoder()
    optimizer = torch.optim.AdamW(groups(model), lr=1e-3, **settings)
    doctor = examined(model, optimizer, loss=lambda m, b: factor * mean_loss(m, b))
    assert accused(doctor, rule) == [kind]


@pytest.mark.parametrize(("factor", "kind"), [(1.0, CHOICE), (1e-10, MISTAKE)])
def test_gradients_below_epsilon_in_parts_that_wait_for_another_or_everywhere(factor: float, kind: bool) -> None:
    model = net(6, 16, 16, 1)
    with torch.no_grad():
        model[-1].weight.mul_(1e-9)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    with limpid.watch(model, optimizer, say=False) as doctor:
        doctor.preflight(table(), lambda m, given: factor * squared(m, given))
    assert accused(doctor, "epsilon-dominates") == [kind]


@pytest.mark.parametrize(("decay", "kind"), [(300.0, MISTAKE), (100.0, CHOICE)])
def test_decay_that_forgets_within_five_steps_or_within_ten(decay: float, kind: bool) -> None:
    model = Decoder()
    two = [{"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": decay}]
    assert accused(examined(model, torch.optim.AdamW(two, lr=1e-3)), "decay-too-strong") == [kind]


def embedded(model: nn.Module, given: Any) -> tuple[Tensor, Tensor, Tensor]:
    return model(given[0]), model(given[0].flip(0)), model(given[0].roll(1, 0))


PAIRS: list[tuple[str, bool, Callable[[nn.Module, Any], Tensor]]] = [
    ("pair-with-itself", MISTAKE, lambda m, b: (e := embedded(m, b)) and F.triplet_margin_loss(e[0], e[1], e[1])),
    ("pair-with-itself", CHOICE, lambda m, b: (e := embedded(m, b)) and F.triplet_margin_loss(e[0], e[0], e[1])),
    (
        "target-outside-range",
        MISTAKE,
        lambda m, b: F.cross_entropy(m(b[0]), torch.tensor([3.0, -1.0, 0.5, -2.0]).expand(32, 4)),
    ),
    (
        "target-outside-range",
        CHOICE,
        lambda m, b: F.cross_entropy(m(b[0]), torch.tensor([1.3, -0.1, -0.1, -0.1]).expand(32, 4)),
    ),
    (
        "normalised-over-another-axis",
        MISTAKE,
        lambda m, b: F.kl_div(m(b[0]).log_softmax(0), torch.full((32, 4), 0.25), reduction="batchmean"),
    ),
    (
        "normalised-over-another-axis",
        CHOICE,
        lambda m, b: F.kl_div(m(b[0]).log_softmax(0), torch.full((32, 4), 1 / 32), reduction="batchmean"),
    ),
]


@pytest.mark.parametrize(("rule", "kind", "loss"), PAIRS)
def test_arguments_of_losses(rule: str, kind: bool, loss: Callable[[nn.Module, Any], Tensor]) -> None:
    model = net(6, 16, 4)
    doctor = looped(model, torch.optim.SGD(model.parameters(), 1e-4), 4, loss)
    assert accused(doctor, rule) == [kind]


@pytest.mark.parametrize("kind", [MISTAKE, CHOICE])
def test_nothing_of_the_model_trains(kind: bool) -> None:
    """Its optimizer is to train it; or what learns is added to its inputs."""
    model, prompt = net(6, 16, 1).requires_grad_(False), torch.zeros(6, requires_grad=True)
    if kind is MISTAKE:
        optimizer = torch.optim.SGD([*model.parameters(), prompt], 1e-3)
    else:
        optimizer = torch.optim.SGD([prompt], 1e-3)
    doctor = looped(model, optimizer, 4, lambda m, b: squared(m, (b[0] + prompt, b[1])))
    assert accused(doctor, "parameters-frozen") == [kind]


@pytest.mark.parametrize("kind", [MISTAKE, CHOICE])
def test_a_cut_before_all_that_trains_or_before_a_part_of_it(kind: bool) -> None:
    model = Decoder()

    def loss(made: nn.Module, given: Any) -> Tensor:
        if kind is MISTAKE:
            return mean_loss(made, given).detach().requires_grad_()
        x = made.tokens(given[0]) + made.places(torch.arange(LENGTH))
        return F.cross_entropy(made.head(made.norm(made.blocks[1](made.blocks[0](x)).detach())).mT, given[1])

    doctor = examined(model, torch.optim.AdamW(groups(model), lr=1e-3), loss=loss)
    assert accused(doctor, "gradient-cut") == [kind]


@pytest.mark.parametrize("kind", [MISTAKE, CHOICE])
def test_a_schedule_reaches_one_of_two_groups(kind: bool) -> None:
    """Groups that differ in their decay alone; or a body and a head."""
    model = net(6, 16, 1)
    apart = {} if kind is CHOICE else {"weight_decay": 0.0}
    two = [{"params": model[0].parameters(), "weight_decay": 0.1}, {"params": model[2].parameters(), **apart}]
    optimizer = torch.optim.AdamW(two, lr=1e-3, weight_decay=0.1)

    def schedule(number: int) -> None:
        optimizer.param_groups[0]["lr"] = 1e-3 * 0.8**number

    doctor = looped(model, optimizer, 14, after=schedule)
    assert accused(doctor, "schedule-misses-group") == [kind]


@pytest.mark.parametrize("kind", [MISTAKE, CHOICE])
def test_units_that_stay_alike_or_that_the_next_layer_tells_apart(kind: bool) -> None:
    model = net(6, 16, 16, 1)
    for layer in model[::2]:
        nn.init.constant_(layer.weight, 0.1)
        nn.init.zeros_(layer.bias)
    if kind is CHOICE:
        nn.init.normal_(model[2].weight)
    doctor = looped(model, torch.optim.SGD(model.parameters(), 1e-3), 3)
    assert accused(doctor, "initialisation-degenerate") == [kind]


class Tuned(Decoder):
    """A decoder whose configuration names an end of text."""

    config = {"eos_token_id": 2}  # noqa: RUF012


@pytest.mark.parametrize("kind", [MISTAKE, CHOICE])
def test_answers_without_a_stop(kind: bool) -> None:
    """Of lengths of their own; or of one token each, so that generating is told when to stop."""

    def rows(number: int) -> Any:
        ids = torch.randint(5, VOCAB, (16, LENGTH + 1))
        labels = torch.full_like(ids, -100)
        for row in range(16):
            end = 12 + row % 5 if kind is MISTAKE else 11
            labels[row, 10:end], ids[row, end:] = ids[row, 10:end], 2
        return {"input_ids": ids[:, :-1], "labels": labels[:, 1:]}

    def loss(model: nn.Module, given: Any) -> Tensor:
        return F.cross_entropy(model(given["input_ids"]).flatten(0, 1), given["labels"].flatten())

    model = Tuned()
    doctor = looped(model, torch.optim.SGD(model.parameters(), 1e-3), 3, loss, rows)
    assert accused(doctor, "stop-not-learned") == [kind]


@pytest.mark.parametrize("kind", [MISTAKE, CHOICE])
def test_prompts_weigh_as_much_as_answers_or_less(kind: bool) -> None:
    def rows(number: int) -> Any:
        ids, labels = batch(number)
        return {"input_ids": ids, "labels": labels, "completion_mask": (torch.arange(LENGTH) >= 12).long() + 0 * ids}

    def loss(model: nn.Module, given: Any) -> Tensor:
        each = F.cross_entropy(model(given["input_ids"]).mT, given["labels"], reduction="none")
        weight = torch.where(given["completion_mask"] > 0, 1.0, 1.0 if kind is MISTAKE else 0.1)
        return (weight * each).sum() / weight.sum()

    model = Decoder()
    doctor = looped(model, torch.optim.SGD(model.parameters(), 1e-3), 3, loss, rows)
    assert accused(doctor, "prompt-learned") == [kind]


@pytest.mark.parametrize("kind", [MISTAKE, CHOICE])
def test_norms_of_statistics_that_nobody_measured(kind: bool) -> None:
    """Beside gains that are trained; or all as they began, a plain gain and bias."""
    model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 1)).eval()
    if kind is MISTAKE:
        nn.init.normal_(model[1].weight)
    doctor = looped(model, torch.optim.SGD(model.parameters(), 1e-3), 3)
    assert accused(doctor, "statistics-never-measured") == [kind]


@pytest.mark.parametrize("kind", [MISTAKE, CHOICE])
def test_clipping_of_nothing_or_of_a_part(kind: bool) -> None:
    loop = Loop()
    spent = iter(loop.model.parameters()) if kind is MISTAKE else None
    list(spent or ())
    loop.clip = lambda: nn.utils.clip_grad_norm_(spent or loop.model.norm.parameters(), 1e-3)  # type: ignore[method-assign]
    _, doctor = loop.run(4)
    assert accused(doctor, "clipping-misses-parameters") == [kind]


class ByHand(Block):
    """Attention whose scores can be seen."""

    factor = 1.0

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.qkv(x).chunk(3, -1)
        return x + self.out((self.factor * query @ key.mT).softmax(-1) @ value)


@pytest.mark.parametrize("kind", [MISTAKE, CHOICE])
def test_attention_of_one_key_that_came_about_or_was_chosen(kind: bool) -> None:
    loop = Loop()

    def sharpen(loss: Tensor) -> None:
        loss.backward()
        for block in loop.model.blocks:
            block.factor = 1e9

    loop.model.blocks = nn.ModuleList(ByHand(rotary=False) for _ in range(2))
    loop.optimizer = torch.optim.SGD(loop.model.parameters(), 1e-6)
    for block in loop.model.blocks:
        block.factor = 1e9 if kind is CHOICE else 1.0
    loop.backward = sharpen  # type: ignore[method-assign]
    _, doctor = loop.run(40)
    assert accused(doctor, "attention-scores-large")[:1] == [kind]


@pytest.mark.parametrize("format", [torch.float32, torch.bfloat16])
def test_inputs_too_coarse(format: torch.dtype) -> None:
    """Times in seconds as they are; or numbers that were given two bytes."""
    kind = format == torch.float32
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1)).to(format)

    def rows(number: int) -> tuple[Tensor, Tensor]:
        x, y = table(64)
        x[:, 3] = 1.7e9 + 30 * x[:, 3] if kind else 300 + x[:, 3]
        return x.to(format), y.to(format)

    scaled = lambda m, b: squared(m, (b[0] / b[0].abs().max(), b[1]))  # noqa: E731
    doctor = looped(model, torch.optim.SGD(model.parameters(), 1e-4), 4, scaled, rows)
    assert accused(doctor, "inputs-too-coarse")[:1] == [kind]


@pytest.mark.parametrize("order", ["after", "before", "begun with"])
def test_clipping_that_no_update_sees(order: str) -> None:
    """After the update, or before the gradient is there; or first of all, with the update of the step before."""
    model = net(6, 16, 1)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)

    def clip() -> None:
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)

    with limpid.watch(model, optimizer, say=False) as doctor:
        for _ in range(6):
            given = table()
            if order == "begun with":
                clip()
                optimizer.step()
            optimizer.zero_grad()
            if order == "before":
                clip()
            loss = squared(model, given)
            loss.backward()
            if order != "begun with":
                optimizer.step()
            if order == "after":
                clip()
            doctor.step(loss, given)
    assert accused(doctor, "clipped-after-update") == ([] if order == "begun with" else [MISTAKE])


def test_a_base_rate_that_a_schedule_multiplies_is_no_rate() -> None:
    model = Decoder()
    optimizer = torch.optim.AdamW(groups(model), lr=1.0)
    for group in optimizer.param_groups[:1]:
        group["weight_decay"] = 0.5
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1e-3 * min(1.0, (step + 1) / 10))
    with limpid.watch(model, optimizer, scheduler=schedule, say=False) as doctor:
        doctor.preflight(batch(0), loss=mean_loss, total_steps=100)
    assert accused(doctor, "decay-too-strong") == []
