"""Bugs of the update rules: AdamW, momentum, Muon, and which parameters they move how."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.robustness.bugs_answers import MOVED, REMEMBERED, REPLAY
from benchmarks.robustness.bugs_patch import Bug, Edit

UPDATE, RULES, MUON = "training/update.py", "training/optimizers.py", "training/muon.py"

ADAMW = {
    "decay": "p.mul_(1 - lr * decay)",
    "first": "m = state['exp_avg'].lerp_(g, 1 - beta1)",
    "second": "v = state['exp_avg_sq'].mul_(beta2).addcmul_(g, g, value=1 - beta2)",
    "corrected": "m_hat, v_hat = m / (1 - beta1**t), v / (1 - beta2**t)",
    "move": "p.sub_(lr * m_hat / (v_hat.sqrt() + eps))",
    "last": "pass",
}
"""AdamW by hand, as many codebases hold it; a bug has one of its lines otherwise."""


def adamw_by_hand(changed: Mapping[str, str]) -> Edit:
    """PyTorch's AdamW replaced by a loop of our own, some lines of it changed."""
    lines = (ADAMW | dict(changed)).values()
    indented = "".join(f"                {line}\n" for line in lines)
    return Edit(
        RULES,
        "    step = torch.no_grad()(inspect.unwrap(torch.optim.AdamW.step))\n",
        f"""    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            lr, eps, decay, (beta1, beta2) = (group[name] for name in ("lr", "eps", "weight_decay", "betas"))
            for p in group["params"]:
                if p.grad is None:
                    continue
                state, g = self.state[p], p.grad
                if "step" not in state:
                    state["step"] = torch.tensor(0.0)
                    state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(p), torch.zeros_like(p)
                state["step"] += 1
                t = float(state["step"])
{indented}""",
    )


RULE_BUGS = (
    Bug(
        "adamw-epsilon-in-the-root",
        "optimizer",
        "AdamW divides by √(v̂ + ε) instead of √v̂ + ε.",
        (adamw_by_hand({"move": "p.sub_(lr * m_hat / (v_hat + eps).sqrt())"}),),
        MOVED,
    ),
    Bug(
        "adamw-epsilon-before-the-correction",
        "optimizer",
        "ε is added to √v before the bias correction divides both.",
        (adamw_by_hand({"move": "p.sub_(lr * m_hat / ((v.sqrt() + eps) / (1 - beta2**t) ** 0.5))"}),),
        MOVED,
        "adamw, large epsilon",
    ),
    Bug(
        "adamw-second-moment-uncorrected",
        "optimizer",
        "Only the first moment is corrected for its bias.",
        (adamw_by_hand({"corrected": "m_hat, v_hat = m / (1 - beta1**t), v"}),),
        MOVED,
        subtle=False,
    ),
    Bug(
        "adamw-corrections-one-late",
        "optimizer",
        "Both bias corrections use the number of the next update.",
        (
            adamw_by_hand(
                {"corrected": "m_hat, v_hat = m / (1 - beta1 ** (t + 1)), v / (1 - beta2 ** (t + 1))"},
            ),
        ),
        MOVED,
    ),
    Bug(
        "adamw-decay-after-the-move",
        "optimizer",
        "The decay multiplies the parameter that has moved already.",
        (adamw_by_hand({"decay": "pass", "last": "p.mul_(1 - lr * decay)"}),),
        MOVED,
    ),
    Bug(
        "adamw-second-moment-too-large",
        "optimizer",
        "The second moment averages 1.01 g².",
        (adamw_by_hand({"second": "v = state['exp_avg_sq'].mul_(beta2).addcmul_(g, g * 1.01, value=1 - beta2)"}),),
        ("v(*) (update)",),
    ),
    Bug(
        "decay-coupled",
        "optimizer",
        "adamw is PyTorch's Adam: the decay joins the gradient.",
        (Edit(UPDATE, "return AdamW(groups", "return Adam(groups"),),
        (*REMEMBERED, *MOVED),
        subtle=False,
    ),
    Bug(
        "gains-decay-too",
        "optimizer",
        "The group without decay has the decay of the other.",
        (Edit(UPDATE, '"weight_decay": 0.0}', '"weight_decay": update.weight_decay}'),),
        ("*norm*.weight (update)",),
    ),
    Bug(
        "beta2-left-at-its-default",
        "optimizer",
        "The second moment decays by PyTorch's 0.999 whatever was asked for.",
        (Edit(UPDATE, "betas = (update.beta1, update.beta2)", "betas = (update.beta1, 0.999)"),),
        ("v(*) (update)", *MOVED),
    ),
    Bug(
        "embedding-without-decay",
        "optimizer",
        "The first parameter, the embedding, lies in the group without decay.",
        (
            Edit(UPDATE, "[p for p in parameters if p.ndim >= 2]", "[p for p in parameters[1:] if p.ndim >= 2]"),
            Edit(
                UPDATE,
                "[p for p in parameters if p.ndim < 2]",
                "[p for p in parameters if p.ndim < 2 or p is parameters[0]]",
            ),
        ),
        ("embed.tokens.weight (update)",),
    ),
    Bug(
        "one-gain-in-no-group",
        "optimizer",
        "The optimizer was never given the last norm's gain.",
        (
            Edit(
                UPDATE,
                "for name, parameter in model.named_parameters() if parameter.requires_grad]",
                "for name, parameter in model.named_parameters() if parameter.requires_grad "
                'and name != "final_norm.weight"]',
            ),
        ),
        ("final_norm.weight (update)", "m(final_norm.weight) (update)", "v(final_norm.weight) (update)"),
    ),
    Bug(
        "momentum-undampened",
        "optimizer",
        "v = βv + g instead of βv + (1 - β)g.",
        (Edit(UPDATE, "dampening=update.beta1", "dampening=0"),),
        ("m(*) (update)",),
        "momentum",
        subtle=False,
    ),
    Bug(
        "momentum-starts-from-the-gradient",
        "optimizer",
        "The first step has v = g, as PyTorch does alone, instead of (1 - β)g.",
        (
            Edit(
                UPDATE,
                'optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)',
                "pass",
            ),
        ),
        ("m(*) (update)", *REPLAY),
        "momentum, first step",
    ),
    Bug(
        "muon-one-product-fewer",
        "optimizer",
        "Newton–Schulz stops one round early.",
        (
            Edit(
                MUON,
                'group["ns_coefficients"], group["ns_steps"], group["eps"]',
                'group["ns_coefficients"], group["ns_steps"] - 1, group["eps"]',
            ),
        ),
        ("blocks.*.weight (update)",),
        "muon",
    ),
    Bug(
        "muon-scaled-by-rows",
        "optimizer",
        "The step of a wide matrix is scaled by its rows instead of its longer side.",
        (Edit(MUON, "math.sqrt(max(parameter.shape))", "math.sqrt(parameter.shape[0])"),),
        ("blocks.*.mlp.output.weight (update)",),
        "muon",
    ),
    Bug(
        "muon-without-look-ahead",
        "optimizer",
        "The step follows the momentum itself, not Nesterov's point ahead of it.",
        (
            Edit(
                MUON,
                'torch._foreach_lerp(gradients, momenta, group["momentum"])',
                "[momentum.clone() for momentum in momenta]",
            ),
        ),
        ("blocks.*.weight (update)",),
        "muon",
        subtle=False,
    ),
)
