"""Round 15a, honest and odd: bodies that were made by others, with something on top."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import Language, apart, documents, examples, hf_trainer, judged, outcome
from benchmarks.robustness.loops.round7b_tools import near
from benchmarks.robustness.loops.round10a_tools import tuned
from benchmarks.robustness.loops.training import llama
from torch import Tensor, nn
from torch.nn import functional as F


class ManyDropouts(nn.Module):
    """BERT's layers, mixed by learned weights, their mean over words, and one head behind five dropouts."""

    def __init__(self) -> None:
        super().__init__()
        from transformers import BertConfig, BertModel

        settings: dict[str, Any] = {"vocab_size": 16, "hidden_size": 32, "num_hidden_layers": 2}
        settings |= {"num_attention_heads": 2, "intermediate_size": 64, "max_position_embeddings": 16}
        self.body, self.mix = BertModel(BertConfig(**settings), add_pooling_layer=False), nn.Parameter(torch.zeros(3))
        self.drops, self.head = nn.ModuleList(nn.Dropout(0.1 * k) for k in range(1, 6)), nn.Linear(32, 3)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        states = self.body(input_ids, attention_mask, output_hidden_states=True).hidden_states
        h = (torch.stack(states, -1) * self.mix.softmax(0)).sum(-1)
        share = attention_mask.float()[..., None]
        h = (h * share).sum(1) / share.sum(1)
        each = torch.stack([self.head(drop(h)) for drop in self.drops])
        out = {"logits": each.mean(0)}
        if labels is not None:
            out["loss"] = torch.stack([F.cross_entropy(logits, labels) for logits in each]).mean()
        return out


@honest("r15a-five-dropouts-before-one-head")
def five_dropouts_before_one_head(run: Run) -> None:
    """transformers' Trainer, BERT with multi-sample dropout (Inoue 2019), as winners on Kaggle have it. One head is
    called five times in a pass behind dropouts from 0.1 to 0.5, losses are averaged and not those of averaged
    logits, so that the loss that is told is not the cross-entropy of the logits that the model returns."""
    model = ManyDropouts()
    ids, keep, y = documents(256, apart(1))
    outcome(run, lambda: judged(model, lambda: F.cross_entropy(model(ids, keep)["logits"], y)))
    ids_in, keep_in, y_in = documents(480)
    data = examples(input_ids=ids_in, attention_mask=keep_in.long(), labels=y_in)
    hf_trainer(run, model, data, 80, learning_rate=3e-3).train()


@honest("r15a-layers-repeated-with-own-adapters")
def layers_repeated_with_own_adapters(run: Run) -> None:
    """transformers' Trainer and peft's layer_replication on a Llama. A model of two trained layers becomes one of
    four, of which the third and fourth are the same frozen tensors as the first and second, as in SOLAR and
    Goliath, and each copy has adapters of its own; at first the stack says worse things than the model that it is
    made of."""
    from peft import LoraConfig, get_peft_model

    old = Language(run.draw.randrange(999), first=4)
    new = near(old, run.draw.randrange(999))
    new.first = 4
    base = llama(vocab_size=16)
    tuned(base, lambda: old.rows(16, 20), lambda rows: base(input_ids=rows, labels=rows).loss, 80, 5e-3)
    options = {"layer_replication": [[0, 2], [0, 2]], "target_modules": ["q_proj", "v_proj", "up_proj", "down_proj"]}
    model = get_peft_model(base, LoraConfig(r=8, lora_alpha=16, task_type="CAUSAL_LM", **options))
    check = new.rows(96, 20, apart(1))
    outcome(run, lambda: judged(model, lambda: model(input_ids=check, labels=check).loss))
    rows = new.rows(480, 20)
    hf_trainer(run, model, examples(input_ids=rows, labels=rows), 80, learning_rate=1e-2).train()
