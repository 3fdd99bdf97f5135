"""Plugin of pytest that runs llama.cpp's server tests with riffle.

- Tests whose names begin as a line of deselected.txt, or that carry its @mark, are left out; a line that fits no test is an error.
- Tests that llama.cpp skips because its answers are not reproducible run.
- What llama-server takes as flags and riffle with each request (temperature, seed, length, thoughts) is written into the requests.
- Answers to one prompt with one seed have to be equal whatever ran beside them.
"""

import itertools
import os
import pathlib

import openai
import pytest
import utils

DESELECTED = pathlib.Path(__file__).with_name("deselected.txt")
UNSKIPPED = {"test_cache_vs_nocache_prompt"}
ports = itertools.count(int(os.environ.get("RIFFLE_SUITE_PORT", "21810")))
current: dict[str, utils.ServerProcess] = {}
answers: dict[tuple, str] = {}

utils.ServerPreset.load_all = staticmethod(lambda: None)


def rules() -> list[tuple[str, str]]:
    lines = [line for line in DESELECTED.read_text().splitlines() if line and not line.startswith("#")]
    return [tuple(part.strip() for part in line.split(" | ", 1)) for line in lines]


def pytest_collection_modifyitems(config, items):
    kept, left_out, used = [], [], set()
    for item in items:
        name = item.nodeid.split("unit/", 1)[-1]
        names = (name, *(f"@{mark.name}" for mark in item.iter_markers()))
        rule = next((rule for rule, _ in rules() if any(name.startswith(rule) for name in names)), None)
        if rule is None:
            kept.append(item)
        else:
            used.add(rule)
            left_out.append(item)
        if item.name in UNSKIPPED:
            item.own_markers = [mark for mark in item.own_markers if mark.name != "skip"]
    if not os.environ.get("RIFFLE_SUITE_PART"):
        missing = [rule for rule, _ in rules() if rule not in used]
        if missing:
            raise pytest.UsageError(f"deselected.txt names tests that are not there: {missing}")
    config.hook.pytest_deselected(items=left_out)
    items[:] = kept


@pytest.fixture(autouse=True)
def a_port_of_its_own(monkeypatch):
    original = utils.ServerProcess.start

    def start(self, *arguments, **named):
        self.server_port = next(ports)
        current["server"] = self
        return original(self, *arguments, **named)

    monkeypatch.setattr(utils.ServerProcess, "start", start)


def with_model(server, body):
    """The body with the name of the model that is served: llama-server answers to any name."""
    if not isinstance(body, dict) or body.get("model") is None:
        return body
    return {**body, "model": server.model_alias}


def with_defaults(server, body):
    """The body with what llama-server was told by flags."""
    if not isinstance(body, dict):
        return body
    return with_model(server, {"temperature": server.temperature, "seed": server.seed, **body})


def is_answer(path: str) -> bool:
    return path.endswith(("/completions", "/completion", "/messages", "/responses"))


def is_counted(path: str) -> bool:
    return path.endswith(("/count_tokens", "/input_tokens"))


def with_length(server, body):
    body = dict(body)
    body.setdefault("n_predict", -1 if server.n_predict is None else server.n_predict)
    return body


original_request = utils.ServerProcess.make_request
original_stream = utils.ServerProcess.make_stream_request


def make_request(self, method, path, data=None, headers=None, **named):
    if path == "/apply-template" and self.reasoning is not None:
        data = {**data, "chat_template_kwargs": {"enable_thinking": self.reasoning != "off"}}
    if method == "POST" and is_counted(path):
        return original_request(self, method, path, with_model(self, data), headers, **named)
    if method != "POST" or not is_answer(path):
        return original_request(self, method, path, data, headers, **named)
    data = with_defaults(self, data)
    if path != "/completion":
        return original_request(self, method, path, data, headers, **named)
    data = with_length(self, data)
    result = original_request(self, method, path, data, headers, **named)
    if result.status_code == 200:
        remember(self, data, result.body)
    return result


def make_stream_request(self, method, path, data=None, headers=None, **named):
    data = with_defaults(self, data)
    if path == "/completion":
        data = with_length(self, data)
    yield from original_stream(self, method, path, data, headers, **named)


def remember(server, data, answer):
    """Compares an answer with those to the same request, alone or beside others, cached or not, in whatever batches."""
    if not isinstance(data["prompt"], str):
        return
    # Only an answer that is as long as it gets depends on the room.
    room = server.n_ctx // server.n_slots if data["n_predict"] < 0 else None
    key = (room, *(repr((name, value)) for name, value in sorted(data.items()) if name != "cache_prompt"))
    text = answer["content"]
    assert answers.setdefault(key, text) == text, f"the answer to {data} changed: {answers[key]!r} became {text!r}"


utils.ServerProcess.make_request = make_request
utils.ServerProcess.make_stream_request = make_stream_request

original_post = openai.OpenAI.post


def post(self, path, *, body=None, **named):
    return original_post(self, path, body=with_defaults(current["server"], body), **named)


openai.OpenAI.post = post
