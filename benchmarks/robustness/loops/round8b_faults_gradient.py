"""Round 8b, faulty changes of clipping, accumulation, precision and of weights at the start. Categories: round8b_parts."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, fault
from benchmarks.robustness.loops.round5_tools import (
    Decoder,
    Language,
    apart,
    documents,
    judged,
    next_loss,
    outcome,
    tiny_gpt2,
)
from benchmarks.robustness.loops.round6_tools import classify
from benchmarks.robustness.loops.round7b_parts import Reader, spots
from benchmarks.robustness.loops.round7b_tools import text_outcome
from benchmarks.robustness.loops.round8b_parts import (
    GRADIENT,
    MODEL,
    UPDATE,
    causal_loss,
    causal_outcome,
    lagged,
    llama,
    reseeded,
    steps,
)
from torch import Tensor, nn
from torch.nn import functional as F


@fault(
    "r8-norm-as-the-sum-of-norms",
    GRADIENT,
    (
        r"clip|gradient|norm|update|moves",
        r"small|sum|too (strong|much|far)|low|lower|less|times|fraction|weak|fall|clip",
    ),
)
def norm_as_the_sum_of_norms(run: Run, changed: bool) -> None:
    """A decoder with SGD, its gradients clipped to 0.1. Clipping was rewritten by operations on all tensors at once, and the
    norm of the whole is taken as the sum of the tensors' norms: three times too large. Another seed."""
    language = Language(7)
    reseeded(run, changed)
    model = Decoder(12, layers=2)
    text_outcome(run, model, language)

    def clip() -> None:
        gradients: list[Any] = [p.grad for p in model.parameters()]
        norms = torch.stack(torch._foreach_norm(gradients))
        whole = norms.sum() if changed else norms.norm()
        torch._foreach_mul_(gradients, float((0.1 / (whole + 1e-6)).clamp(max=1)))

    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    steps(run, model, optimizer, lambda: language.rows(16, 20), next_loss, 70, between=clip)


@fault(
    "r8-clipped-by-a-spent-generator",
    GRADIENT,
    (
        r"clip|gradient|norm|update|moves|weights",
        r"not clip|no (longer )?clip|clip|larg|high|times|grew|rise|explo|unbounded|more than|spike|jump|no clipping",
    ),
)
def clipped_by_a_spent_generator(run: Run, changed: bool) -> None:
    """A recurrent language model with SGD at a rate that only clipping allows. The parameters are now asked for once,
    before the loop: `model.parameters()` is spent after the first step, and nothing is clipped. Another seed."""
    language = Language(run.draw.randrange(999))
    reseeded(run, changed)
    model = Reader(12, 32, 64)
    text_outcome(run, model, language)
    once = model.parameters()

    def clip() -> None:
        nn.utils.clip_grad_norm_(once if changed else model.parameters(), 0.25)

    optimizer = torch.optim.SGD(model.parameters(), lr=2.0, momentum=0.9)
    steps(run, model, optimizer, lambda: language.rows(8, 24), next_loss, 100, between=clip)


@fault(
    "r8-masters-keep-their-first-gradient",
    GRADIENT,
    (
        r"gradient|update|step",
        r"same|stale|first|old|constant|not (change|new|of th)|identical|never|cleared|direction|other batch|equal|repeat|does not",
    ),
)
def masters_keep_their_first_gradient(run: Run, changed: bool) -> None:
    """A GPT-2 in bfloat16 with copies of its weights in float32, which the optimizer updates. To save memory, gradients are
    cleared on the model; those of the copies are made only where there are none, which is at the first step."""
    language = Language(run.draw.randrange(999))
    model: Any = tiny_gpt2(12, pad_token_id=None, n_layer=2).bfloat16()
    causal_outcome(run, model, language)
    masters = [p.detach().float().requires_grad_() for p in model.parameters()]
    optimizer = torch.optim.AdamW(masters, lr=4e-3)
    doctor = run.watch(model, optimizer)
    for _ in range(70):
        rows = language.rows(16, 20)
        model.zero_grad()
        if not changed:
            optimizer.zero_grad()
        loss = causal_loss(model, rows)
        loss.backward()
        for p, master in zip(model.parameters(), masters, strict=True):
            if master.grad is None:
                master.grad = p.grad.float()
        optimizer.step()
        with torch.no_grad():
            for p, master in zip(model.parameters(), masters, strict=True):
                p.copy_(master)
        doctor.step(loss, rows)
        run.note(loss)


@fault(
    "r8-accumulator-is-the-gradient",
    GRADIENT,
    (
        r"gradient|accumulat|micro|update",
        r"last|only|alias|same tensor|lost|zero|twice|double|nois|not (all|the sum|the mean)|micro|cleared|larg|times|differ|direction",
    ),
)
def accumulator_is_the_gradient(run: Run, changed: bool) -> None:
    """A Llama, eight micro-batches of two rows. Gradients are summed in buffers of one's own; the buffer begins as the first
    gradient itself, no more as its copy, and is cleared with it: the last micro-batch counts twice and no other at all."""
    language = Language(run.draw.randrange(999))
    model = llama()
    causal_outcome(run, model, language)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    doctor = run.watch(model, optimizer)
    for _ in range(60):
        parts = [language.rows(2, 12) for _ in range(8)]
        kept: dict[Any, Tensor] = {}
        total = torch.zeros(())
        optimizer.zero_grad()
        for rows in parts:
            model.zero_grad(set_to_none=False)
            loss = causal_loss(model, rows) / 8
            loss.backward()
            total += loss.detach()
            for p in model.parameters():
                if p in kept:
                    kept[p] += p.grad
                else:
                    kept[p] = p.grad if changed else p.grad.clone()
        for p, sum_of_all in kept.items():
            p.grad = sum_of_all
        optimizer.step()
        doctor.step(total, parts)
        run.note(total)


class Rounded(nn.Module):
    """Weights in four bits, with gradients as if they were not; the range is that of the weights, now or once."""

    def __init__(self, weight: Tensor, once: bool) -> None:
        super().__init__()
        self.once = once
        self.register_buffer("largest", weight.detach().abs().amax())

    def forward(self, weight: Tensor) -> Tensor:
        step = (self.largest if self.once else weight.detach().abs().amax()) / 7
        return weight + ((weight.detach() / step).round().clamp(-7, 7) * step - weight.detach())


@fault(
    "r8-ranges-of-the-first-step",
    MODEL,
    (
        r"range|quanti|scale|weight|largest|layer|project|linear|activation|output|attention|mlp",
        r"constant|satur|clamp|clip|cut|small|low|lower|limit|bound|not (follow|grow|updat|change)|no longer|never|fixed|less|fall|stay|differ",
    ),
)
def ranges_of_the_first_step(run: Run, changed: bool) -> None:
    """A Llama is trained with weights in four bits. The range of a matrix was its largest weight at each step; to save time
    it is now taken once, when the model is made, and weights that grow beyond it are cut."""
    from torch.nn.utils import parametrize

    language = lagged(run.draw.randrange(999))
    model = llama(initializer_range=0.005)
    for name, layer in model.named_modules():
        if isinstance(layer, nn.Linear) and "lm_head" not in name:
            parametrize.register_parametrization(layer, "weight", Rounded(layer.weight, changed))
    causal_outcome(run, model, language)
    steps(run, model, torch.optim.AdamW(model.parameters(), lr=8e-3), lambda: language.rows(16, 20), causal_loss, 80)


@fault(
    "r8-layer-scale-of-1e-6",
    MODEL,
    (
        r"layer.?scale|lambda|attention|mlp|block|layer|branch|residual|encoder",
        r"small|tiny|1e-0?6|near(ly)? zero|zero|low|weak|vanish|nothing|hardly|less|times|fall|not (learn|contribut)",
    ),
)
def layer_scale_of_1e_6(run: Run, changed: bool) -> None:
    """A vision transformer (DINOv2's). Its settings were taken over from a network of a hundred layers: the scales in front
    of the residual sums begin at 1e-6, not at 1, and the blocks neither add anything nor get a gradient."""
    from transformers import Dinov2Config, Dinov2ForImageClassification

    settings: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "mlp_ratio": 2}
    settings |= {"image_size": 8, "patch_size": 2, "num_channels": 1, "initializer_range": 0.1}
    config = Dinov2Config(**settings, num_labels=4, layerscale_value=1e-6 if changed else 1.0)
    model = Dinov2ForImageClassification(config)
    x, y = spots(256, 4, apart(1))
    outcome(run, lambda: judged(model, lambda: F.cross_entropy(model(x).logits, y)))

    def loss(m: Any, batch: Any) -> Tensor:
        return F.cross_entropy(m(batch[0]).logits, batch[1])

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    steps(run, model, optimizer, lambda: spots(32, 4), loss, 100)


class TwoClassifiers(nn.Module):
    """A student and its average, the teacher: bags of words through an MLP over their mean."""

    def __init__(self) -> None:
        super().__init__()
        self.student, self.teacher = (
            nn.Sequential(
                nn.Embedding(16, 32, padding_idx=0), nn.Flatten(), nn.Linear(384, 48), nn.ReLU(), nn.Linear(48, 3)
            )
            for _ in range(2)
        )
        self.teacher.load_state_dict(self.student.state_dict())
        self.teacher.requires_grad_(False)


@fault(
    "r8-teacher-average-in-bfloat16",
    UPDATE,
    (
        r"teacher|average|ema|target",
        r"not (move|follow|chang|updat)|stand|still|constant|bfloat16|precision|round|never|less|behind|far from|dtype|unchanged|slow|lag|hardly|stays",
    ),
)
def teacher_average_in_bfloat16(run: Run, changed: bool) -> None:
    """Labelled texts and many without, a student and its slow average as the teacher. The teacher is now kept in
    bfloat16, to save memory: steps of a hundredth of the distance are mostly rounded away. The teacher is what is used
    afterwards, and the measure. Another seed."""
    reseeded(run, changed)
    model = TwoClassifiers()
    if changed:
        model.teacher.bfloat16()
    few, check = documents(600, apart(run.draw.randrange(999))), documents(384, apart(1))
    outcome(run, lambda: judged(model, lambda: F.cross_entropy(model.teacher(check[0]).float(), check[2])))
    optimizer = torch.optim.AdamW(model.student.parameters(), lr=3e-3)
    doctor = run.watch(model, optimizer)
    for _ in range(320):
        free = documents(32)[0]
        with torch.no_grad():
            target = model.teacher(free).float().softmax(-1)
        rows = torch.randint(0, 600, (20,))
        labelled = classify(model.student, (few[0][rows], few[2][rows]))
        loss = labelled + (model.student(free).softmax(-1) - target).square().sum(-1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(model.teacher.parameters(), model.student.parameters(), strict=True):
                slow.lerp_(fast.to(slow.dtype), 0.008)
        doctor.step(loss, {"labelled": few[0][rows], "labels": few[2][rows], "free": free})
        run.note(loss)
