"""Needles, RULER, records and lm-eval."""

from __future__ import annotations

import json

import numpy as np
import pytest
from conftest import MODEL, ROOT

import riffle
from riffle import errors

pandas = pytest.importorskip("pandas")

from riffle import evaluation  # noqa: E402


def test_needles_are_found(text):
    engine = riffle.Engine(MODEL, context=4096)
    told = []
    frame = evaluation.needle(engine, text, lengths=[2048], depths=5, progress=lambda done, total: told.append(done))
    assert len(frame) == 5 and frame["correct"].sum() >= 4
    assert {"expected", "answered", "depth", "context_tokens"} <= set(frame.columns)
    assert told == sorted(told)
    sparse = evaluation.needle(
        engine.with_options(decode="streaming:sinks=4,window=64,from=0"), text, lengths=[2048], depths=5
    )
    assert sparse["correct"].sum() < frame["correct"].sum()


def test_ruler_is_asked(text):
    engine = riffle.Engine(MODEL, context=4096)
    frame = evaluation.ruler(engine, text, tasks=["niah_single_2", "vt"], lengths=[1024], samples=2)
    assert list(frame["task"]) == ["niah_single_2"] * 2 + ["vt"] * 2
    assert ((frame["score"] >= 0) & (frame["score"] <= 1)).all()
    prompt, expected = evaluation.ruler_prompt(engine, text, "niah_single_2", 1024)
    assert expected and all(value in prompt for value in expected)
    assert len(evaluation.RULER_TASKS) == 13 and "multi-key" in evaluation.KINDS and "late" in evaluation.PLACES


def test_wrong_tasks_are_named(text, engine):
    for call, said in [
        (lambda: evaluation.ruler(engine, text, tasks=["sums"], lengths=[1024]), "sums"),
        (lambda: evaluation.needle(engine, text, lengths=[]), "nothing to ask"),
        (lambda: evaluation.needle(engine, text, lengths=[1024], depths=0), "--depths"),
        (lambda: evaluation.needle(engine, "short", lengths=[1024]), "text"),
        (lambda: evaluation.compare(engine, text, policies=["magic"], lengths=[1024]), "magic"),
    ]:
        with pytest.raises(errors.RiffleError, match=said):
            call()


def test_records_of_the_laboratory_load_and_plot():
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("agg")
    folder = ROOT / "docs/results/records"
    records = evaluation.load_records(folder)
    assert len(records) == len(list(folder.glob("*.json")))
    kinds = {record.kind for record in records}
    assert {"needle", "comparison"} <= kinds
    for record in records:
        saved = json.loads((folder / f"{record.name}.json").read_text())
        assert record.header["kind"] == saved["kind"] and "results" not in record.header
        assert len(record.rows) > 0
    one = next(record for record in records if record.kind == "needle")
    axes = one.plot()
    assert axes.lines and axes.get_xlabel() == "depth"
    with pytest.raises(ValueError, match="there are"):
        one.plot("colour", "correct")
    with pytest.raises(errors.RiffleError, match="not a record|missing"):
        evaluation.load_record(MODEL / "config.json")
    with pytest.raises(FileNotFoundError):
        evaluation.load_records(MODEL / "nothing")


def items(text: str, count: int = 200) -> list[tuple[str, list[str]]]:
    """A local task: which of four continuations stands in the text."""
    words = text.split()
    random = np.random.default_rng(4)
    found = []
    for _ in range(count):
        at = int(random.integers(60, len(words) - 10))
        context = " ".join(words[at - int(random.integers(20, 60)) : at])
        others = [int(other) for other in random.integers(0, len(words) - 8, 3)]
        choices = [" " + " ".join(words[place : place + 4]) for place in [at, *others]]
        found.append((context, choices))
    return found


def test_log_likelihoods_of_lm_eval_are_those_of_transformers(text):
    pytest.importorskip("lm_eval")
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from lm_eval.api.instance import Instance

    from riffle.lm_eval import RiffleLM

    model = transformers.AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()
    lm = RiffleLM(str(MODEL), context=1024, kv_type="f32")
    asked = [(context, choice) for context, choices in items(text) for choice in choices[:1]]
    requests = [Instance("loglikelihood", {}, pair, number) for number, pair in enumerate(asked)]
    found = lm.loglikelihood(requests)
    assert len(found) == 200
    for (context, choice), (value, is_greedy) in zip(asked, found):
        prefix, rest = lm._encode_pair(context, choice)
        tokens = torch.tensor([prefix + rest])
        with torch.no_grad():
            logits = torch.log_softmax(model(tokens).logits[0].double(), -1)
        at = torch.arange(len(prefix) - 1, len(prefix) + len(rest) - 1)
        expected = logits[at, torch.tensor(rest)].sum().item()
        assert abs(value - expected) < 1e-3, (context, choice, value, expected)
        assert is_greedy == bool((logits[at].argmax(-1) == torch.tensor(rest)).all())


def test_lm_eval_runs_a_local_task(text, tmp_path):
    pytest.importorskip("lm_eval")
    pytest.importorskip("torch")
    import lm_eval
    from lm_eval.tasks import TaskManager

    import riffle.lm_eval  # noqa: F401

    with open(tmp_path / "items.jsonl", "w") as file:
        for context, choices in items(text, 24):
            file.write(json.dumps({"context": context, "choices": choices, "answer": 0}) + "\n")
    (tmp_path / "next_words.yaml").write_text(
        f"""
task: next_words
dataset_path: json
dataset_kwargs:
  data_files:
    test: {tmp_path / "items.jsonl"}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{context}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: answer
target_delimiter: ""
metric_list:
  - metric: acc
"""
    )
    results = lm_eval.simple_evaluate(
        model="riffle",
        model_args=f"model={MODEL},context=1024,kv_type=f32",
        tasks=["next_words"],
        task_manager=TaskManager(include_path=str(tmp_path)),
        bootstrap_iters=0,
    )
    accuracy = results["results"]["next_words"]["acc,none"]
    # The text's own words are likelier than others; chance is a quarter.
    assert accuracy > 0.5


def test_lm_eval_writes_and_rolls(text):
    pytest.importorskip("lm_eval")
    pytest.importorskip("torch")
    from lm_eval.api.instance import Instance

    from riffle.lm_eval import RiffleLM

    lm = RiffleLM(riffle.Engine(MODEL, context=256, kv_type="f32"))
    requests = [Instance("generate_until", {}, (text[:300], {"until": ["\n"], "max_gen_toks": 12}), 0)]
    (answer,) = lm.generate_until(requests)
    expected = lm.engine.generate(text[:300], max_tokens=12, stop="\n", temperature=0.0).text
    assert answer == expected and "\n" not in answer
    (total,) = lm.loglikelihood_rolling([Instance("loglikelihood_rolling", {}, (text[:400],), 0)])
    tokens = [lm.prefix_token_id, *lm.tok_encode(text[:400])]
    assert len(tokens) < 250
    values = lm.engine.log_probabilities(tokens)
    assert abs(total - float(values.astype(float).sum())) < 1e-3
    with pytest.raises(errors.OptionError, match="device"):
        RiffleLM(str(MODEL), device="cuda")
