"""The whole of training beside transformers' model and PyTorch's own optimizer, on the same batches."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from transformers import LlamaConfig, LlamaForCausalLM

from limpid.config import ModelConfig, TrainConfig
from limpid.quantities import parameters
from limpid.schedule import learning_rate
from limpid.training.start import start
from limpid.training.step import step
from small import config, quiet

STEPS = 200
THEIRS = {
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
    "attention.output": "self_attn.o_proj",
    "mlp.gate": "mlp.gate_proj",
    "mlp.up": "mlp.up_proj",
    "mlp.output": "mlp.down_proj",
    "norm1": "input_layernorm",
    "norm2": "post_attention_layernorm",
}


def their_name(ours: str) -> str:
    """transformers' name of a parameter, written out here by hand."""
    if ours == "embed.tokens.weight":
        return "model.embed_tokens.weight"
    if ours == "final_norm.weight":
        return "model.norm.weight"
    _, block, station = ours.removesuffix(".weight").split(".", 2)
    return f"model.layers.{block}.{THEIRS[station]}.weight"


def llama(sizes: ModelConfig, attention: str) -> LlamaForCausalLM:
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=sizes.vocab_size,
            hidden_size=sizes.d_model,
            intermediate_size=sizes.sizes.d_ff,
            num_hidden_layers=sizes.num_layers,
            num_attention_heads=sizes.num_heads,
            num_key_value_heads=sizes.sizes.num_kv_heads,
            max_position_embeddings=sizes.context_length,
            rms_norm_eps=sizes.norm_eps,
            tie_word_embeddings=True,
            use_cache=False,
            attn_implementation=attention,
        )
    )


class Plain:
    """A plain PyTorch loop around transformers' model, from the weights that limpid drew."""

    def __init__(self, configuration: TrainConfig, sizes: ModelConfig, weights: dict, attention: str) -> None:
        self.configuration, update = configuration, configuration.update
        self.model = llama(sizes, attention)
        theirs = {their_name(p.name): weights[p.name] for p in parameters(sizes)}
        missing, unexpected = self.model.load_state_dict(theirs, strict=False)
        assert not unexpected
        assert missing == ["lm_head.weight"]
        groups = [
            {"params": [p for p in self.model.parameters() if p.ndim == 2], "weight_decay": update.weight_decay},
            {"params": [p for p in self.model.parameters() if p.ndim == 1], "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(groups, betas=(update.beta1, update.beta2), eps=update.eps)

    def step(self, number: int, inputs: torch.Tensor, targets: torch.Tensor) -> float:
        update = self.configuration.update
        logits = self.model(inputs).logits
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), update.max_grad_norm)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(number, self.configuration.run.max_steps, update)
        self.optimizer.step()
        return loss.item()


def largest_gap(some: list[float], others: list[float]) -> float:
    return max(abs(a - b) / b for a, b in zip(some, others, strict=True))


def test_two_hundred_steps_differ_by_no_more_than_transformers_differs_from_itself(data: Path) -> None:
    """Training amplifies rounding. How far is measured: the same model with two orders of summing in its attention."""
    configuration = config(
        data,
        max_steps=STEPS,
        batch_size=8,
        model={"num_kv_heads": 1, "context_length": 32},
        update={"learning_rate": 3e-3, "warmup_steps": 20},
    )
    training = start(configuration, "run", quiet())
    weights = training.state.model.state_dict()
    eager, fused = (Plain(configuration, training.config.model, weights, name) for name in ("eager", "sdpa"))
    curves: tuple[list[float], ...] = ([], [], [])
    for number in range(1, STEPS + 1):
        batch = training.batches.batch(number)
        inputs, targets = torch.as_tensor(batch[0]["tokens"]), torch.as_tensor(batch[0]["targets"])
        curves[0].append(step(training.state, batch, training.config).loss)
        curves[1].append(eager.step(number, inputs, targets))
        curves[2].append(fused.step(number, inputs, targets))
    ours, theirs, also_theirs = curves
    assert ours[-1] < 0.5 * ours[0]
    assert ours[0] == pytest.approx(theirs[0], rel=1e-6)
    assert largest_gap(ours, theirs) <= 4 * max(largest_gap(also_theirs, theirs), 2**-23)
