"""A public issue re-enacted with TRL's own DPO trainer."""

import copy
import tempfile
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, fault
from benchmarks.robustness.loops.public_issues_parts import IGNORE, Chats, outcome, rows_of, shifted
from benchmarks.robustness.loops.public_issues_trainer import Telling
from benchmarks.robustness.loops.training import gpt2
from torch import Tensor

FAMILY = "public issues: TRL"


def letters() -> Any:
    """A tokenizer of one word a token: w5, w6 and so on."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {"<pad>": 0, "<s>": 1, "</s>": 2} | {f"w{i}": i for i in range(3, Chats.VOCABULARY)}
    bare = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    bare.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=bare, pad_token="<pad>", bos_token="<s>", eos_token="</s>")


def spelled(ids: list[int]) -> str:
    return " ".join(f"w{i}" for i in ids if i > 2)


@fault("issue-trl-2042", FAMILY, (r"dropout|stochastic|training mode",))
def dropout_against_reference(run: Run, slip: bool) -> None:
    """huggingface/trl issue 2042: online DPO left dropout on in the policy, while the reference model that it is
    compared with is evaluated without; the log-probabilities fluctuate and the policy starts away from its own
    reference. The other trainers switch dropout off by default, which is the repair. Here TRL's DPO trainer with and
    without disable_dropout; the outcome is how far the first loss is from that of equal models."""
    from datasets import Dataset, disable_progress_bars
    from transformers import PrinterCallback
    from trl import DPOConfig, DPOTrainer

    disable_progress_bars()
    chats = Chats(run.draw.randrange(1000), 3, 6)
    model = gpt2(vocab_size=Chats.VOCABULARY, resid_pdrop=0.2, embd_pdrop=0.2, attn_pdrop=0.2)
    first = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for _ in range(70):
        ids, mask = rows_of([prompt + answer for prompt, answer in chats.some(8)])
        first.zero_grad()
        shifted(model(ids, attention_mask=mask).logits, ids.masked_fill(mask == 0, IGNORE)).backward()
        first.step()

    def wrong(answer: list[int]) -> list[int]:
        return [chats.draw.choice(chats.letters) if chats.draw.random() < 0.5 else c for c in answer]

    rows = [
        {"prompt": spelled(prompt), "chosen": " " + spelled(answer), "rejected": " " + spelled(wrong(answer[:-1]))}
        for prompt, answer in chats.some(160)
    ]

    class Catching(DPOTrainer):  # type: ignore[misc]
        caught: list[tuple[float, dict[str, Tensor]]]

        def training_step(self, model: Any, inputs: Any, *rest: Any, **more: Any) -> Tensor:
            batch = dict(inputs)
            loss: Tensor = super().training_step(model, inputs, *rest, **more)
            self.caught.append((float(loss), batch))
            return loss

    settings: dict[str, Any] = {"max_steps": 50, "learning_rate": 5e-4, "per_device_train_batch_size": 8, "seed": 7}
    settings |= {"report_to": [], "save_strategy": "no", "logging_strategy": "no", "use_cpu": True, "bf16": False}
    settings |= {"disable_tqdm": True, "dataloader_pin_memory": False, "gradient_checkpointing": False, "beta": 0.3}
    with tempfile.TemporaryDirectory() as folder:
        trainer = Catching(
            model=model,
            ref_model=copy.deepcopy(model),
            args=DPOConfig(output_dir=folder, disable_dropout=not slip, **settings),
            train_dataset=Dataset.from_list(rows),
            processing_class=letters(),
        )
        trainer.remove_callback(PrinterCallback)
        trainer.add_callback(Telling(run, trainer))
        outcome(run, lambda: abs(run.losses[0] - 0.6931472))
        trainer.train()
