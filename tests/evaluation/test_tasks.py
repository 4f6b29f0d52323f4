"""Multiple choice: every format, each score by hand, and lm-evaluation-harness's own model beside the adapter."""

import itertools
import json

import numpy as np
import pytest
import torch
from scipy.stats import binomtest
from tests.evaluation.small_models import TEXT, small_model

from limpid.data.new_tokenizer import byte_tokenizer
from limpid.errors import DataError
from limpid.evaluation.tasks import Question, better_at, pair_tokens, question, read_task, run_task, score_answers
from limpid.model.export import save_folder
from limpid.reporter import SILENT

LINES = {
    "query": {"query": "The sky is", "choices": ["blue", "a fish"], "gold": 0},
    "arc": {"question": "Is it?", "choices": {"text": ["yes", "no"], "label": ["A", "B"]}, "answerKey": "B"},
    "openbookqa": {"question_stem": "Is it?", "choices": {"text": ["yes", "no"], "label": [*"12"]}, "answerKey": "2"},
    "mmlu": {"question": "Is it?", "choices": ["yes", "no"], "answer": 1},
    "mmlu, letter": {"question": "Is it?", "choices": ["yes", "no"], "answer": "B"},
    "mmlu, text": {"question": "Is it?", "choices": ["yes", "no"], "answer": "no"},
    "hellaswag": {
        "activity_label": "Dog", "ctx_a": "A man [substeps] sits.", "ctx_b": "the dog", "ctx": "unused",
        "endings": ["[substeps]runs.", "flies."], "label": "1",
    },
    "plain endings": {"ctx": "A man", "endings": ["runs", "flies"], "label": 1},
    "piqa": {"goal": "Cool it", "sol1": "ice", "sol2": "fire", "label": 0},
}  # fmt: skip
QUERIES = {
    "query": ("The sky is", (" blue", " a fish"), 0),
    "arc": ("Question: Is it?\nAnswer:", (" yes", " no"), 1),
    "openbookqa": ("Question: Is it?\nAnswer:", (" yes", " no"), 1),
    "mmlu": ("Question: Is it?\nAnswer:", (" yes", " no"), 1),
    "mmlu, letter": ("Question: Is it?\nAnswer:", (" yes", " no"), 1),
    "mmlu, text": ("Question: Is it?\nAnswer:", (" yes", " no"), 1),
    "hellaswag": ("Dog: A man sits. The dog", (" runs.", " flies."), 1),
    "plain endings": ("A man", (" runs", " flies"), 1),
    "piqa": ("Question: Cool it\nAnswer:", (" ice", " fire"), 0),
}


@pytest.mark.parametrize("name", LINES)
def test_every_format_becomes_a_question(name: str) -> None:
    found = question(LINES[name])
    assert (found.query, found.choices, found.gold) == QUERIES[name]


def test_answers_are_ranked_by_hand_made_sums() -> None:
    one = small_model(context=64)
    asked = question(LINES["query"])
    result = run_task(one, "sky", [asked], 0.95, SILENT)
    sums = []
    for choice in asked.choices:
        tokens = byte_tokenizer().encode(asked.query + choice)
        with torch.inference_mode():
            logs = one.transformer(torch.tensor([tokens]))[0].double().log_softmax(-1)
        first = len(byte_tokenizer().encode(asked.query))
        sums.append(-sum(float(logs[place - 1, tokens[place]]) for place in range(first, len(tokens))))
    assert result.right["sum"][0] == (np.argmin(sums) == 0)
    assert result.right["per byte"][0] == (np.argmin([sums[0] / 4, sums[1] / 6]) == 0)
    assert result.right["per token"][0] == (np.argmin([sums[0] / 5, sums[1] / 7]) == 0)
    assert result.chance == 0.5


def test_spaces_at_the_end_of_a_query_belong_to_the_answer() -> None:
    one = small_model()
    assert pair_tokens(one, "ab  ", "c") == (list(b"ab"), list(b"  c"))
    assert pair_tokens(one, "", "c") == ([256], list(b"c"))


def test_what_is_no_question_is_named(tmp_path) -> None:
    file = tmp_path / "t.jsonl"
    for line, said in (
        ('{"query": "a", "choices": ["b"], "gold": 0}', "two or more"),
        ('{"query": "a", "choices": ["b", "c"], "gold": 2}', "number 2 of 2"),
        ('{"text": "a"}', "its fields are text"),
        ("[1]", "not an object"),
        ("{", "t.jsonl:2"),
        ('{"question": "a", "choices": ["b", "c"], "answer": "Z"}', "t.jsonl:2"),
    ):
        file.write_text("\n" + line, encoding="utf-8")
        with pytest.raises(DataError, match=said):
            read_task(str(file))
    file.write_text("\n", encoding="utf-8")
    with pytest.raises(DataError, match="holds no question"):
        read_task(str(file))
    with pytest.raises(DataError, match="cannot read task"):
        read_task(str(tmp_path / "none"))
    with pytest.raises(DataError, match="has 20 tokens"):
        score_answers(small_model(context=8), [([1], [2] * 20)], SILENT, "x")


def test_two_models_are_compared_on_the_questions_that_divide_them() -> None:
    rng = np.random.default_rng(0)
    asked = [Question("the", (f" {a}", f" {b}"), int(rng.integers(2))) for a, b in itertools.pairwise(TEXT[:61])]
    one, two = (run_task(small_model(seed=seed), "t", asked, 0.95, SILENT) for seed in (0, 1))
    found = better_at(one, two, "sum", 0.95, 0)
    a, b = one.right["sum"] > 0, two.right["sum"] > 0
    assert found.value == pytest.approx(a.mean() - b.mean())
    assert found.p == binomtest(int((a & ~b).sum()), int((a != b).sum())).pvalue
    assert found.low <= found.value <= found.high
    same = better_at(one, one, "sum", 0.95, 0)
    assert (same.value, same.p) == (0.0, 1.0)


def test_the_harness_gets_what_its_own_model_answers(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """lm_eval's HFLM through transformers, and our adapter, on one folder."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from limpid.evaluation.harness import LimpidLM

    one = small_model(context=48)
    folder = tmp_path / "m"
    save_folder(
        folder,
        one.transformer.config,
        one.transformer.state_dict(),
        tokenizer_json=one.tokenizer.to_json(),
        end_of_text=256,
    )
    theirs = HFLM(
        pretrained=AutoModelForCausalLM.from_pretrained(folder), tokenizer=AutoTokenizer.from_pretrained(folder),
        device="cpu", batch_size=2, max_length=48,
    )  # fmt: skip
    ours = LimpidLM(str(folder))

    def asked(kind: str, *arguments: tuple) -> list[Instance]:
        return [Instance(request_type=kind, doc={}, arguments=a, idx=i) for i, a in enumerate(arguments)]

    pairs = asked("loglikelihood", ("the cat", " sees"), ("the ", "dog"), ("", "naïve"), ("x" * 80, " y"))
    for mine, his in zip(ours.loglikelihood(pairs), theirs.loglikelihood(pairs), strict=True):
        assert mine[0] == pytest.approx(his[0], rel=1e-4)
        assert mine[1] == his[1]
    whole = asked("loglikelihood_rolling", (TEXT[:30],), (TEXT[:48],), (TEXT[:150],))
    assert ours.loglikelihood_rolling(whole) == pytest.approx(theirs.loglikelihood_rolling(whole), rel=1e-4)
    stop = {"until": ["\n"], "max_gen_toks": 12}
    prompts = asked("generate_until", ("the cat", stop), ("y" * 90, stop))
    assert ours.generate_until(prompts) == theirs.generate_until(prompts)


def test_a_task_of_the_harness_runs(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    from lm_eval import evaluator
    from lm_eval.api.task import ConfigurableTask

    from limpid.evaluation.harness import LimpidLM

    one = small_model(context=48)
    save_folder(
        tmp_path / "m",
        one.transformer.config,
        one.transformer.state_dict(),
        tokenizer_json=one.tokenizer.to_json(),
        end_of_text=256,
    )
    lines = [
        {"query": f"the {a}", "choices": [b, "or not"], "gold": i % 2} for i, (a, b) in enumerate(["ab", "cd", "ef"])
    ]
    file = tmp_path / "q.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    task = ConfigurableTask(
        config={
            "task": "q", "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(file)}},
            "test_split": "test", "output_type": "multiple_choice", "doc_to_text": "query", "doc_to_choice": "choices",
            "doc_to_target": "gold", "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
        }
    )  # fmt: skip
    model = LimpidLM(str(tmp_path / "m"))
    theirs = evaluator.evaluate(model, {"q": task}, bootstrap_iters=0)["results"]["q"]
    ours = run_task(model.evaluated, "q", read_task(str(file)), 0.95, SILENT)
    assert theirs["acc,none"] == ours.accuracy["sum"].value
    assert theirs["acc_norm,none"] == ours.accuracy["per byte"].value
