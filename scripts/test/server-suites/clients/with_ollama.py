"""The ollama client for Python."""

import json
from typing import Literal

import httpx
import ollama
from pydantic import BaseModel, Field

from asking import MODEL, QUESTION, URL, WEATHER, check

client = ollama.Client(host=URL)
SHORT = {"num_predict": 12, "temperature": 0}
TOOL = {"type": "function", "function": {"name": "weather", "description": "The weather.", "parameters": WEATHER}}


class Colour(BaseModel):
    name: Literal["red", "green", "blue"]
    share: int = Field(ge=0, le=100)


def models() -> None:
    listed = client.list().models
    check("models: the model is listed", [model.model for model in listed] == [MODEL], listed)
    shown = client.show(MODEL)
    check("models: what it can do", {"completion", "tools"} <= set(shown.capabilities), shown.capabilities)
    family = shown.details.family
    check("models: its context", shown.modelinfo[f"{family}.context_length"] > 0, shown.modelinfo)
    check("models: it is loaded", client.ps().models[0].context_length == 8192, client.ps())


def chat() -> None:
    answer = client.chat(model=MODEL, messages=QUESTION, options=SHORT)
    check("chat: a whole answer", bool(answer.message.content) and answer.done_reason in ("stop", "length"), answer)
    times = [answer.total_duration, answer.prompt_eval_count, answer.prompt_eval_duration, answer.eval_count, answer.eval_duration]
    check("chat: counts and times", all(times), times)
    parts = list(client.chat(model=MODEL, messages=QUESTION, options=SHORT, stream=True))
    told = "".join(part.message.content for part in parts)
    check("chat: a stream has the text of the whole answer", told == answer.message.content, told)
    check("chat: a stream ends once", [part.done for part in parts] == [False] * (len(parts) - 1) + [True])
    seeded = {"num_predict": 6, "temperature": 1.0, "seed": 3, "top_k": 40, "top_p": 0.9, "min_p": 0.05, "repeat_penalty": 1.1}
    texts = [client.chat(model=MODEL, messages=QUESTION, options=seeded).message.content for _ in range(2)]
    check("chat: a seed gives the same answers", texts[0] == texts[1], texts)
    logs = client.chat(model=MODEL, messages=QUESTION, options=SHORT, logprobs=True, top_logprobs=2)
    check("chat: one log probability a token", len(logs.logprobs) == logs.eval_count, logs)
    loaded = client.chat(model=MODEL, messages=[], keep_alive="5m")
    check("chat: no messages load the model", loaded.done_reason == "load", loaded)


def tools() -> None:
    history = [
        *QUESTION,
        {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "weather", "arguments": {"city": "Rome", "days": 2}}}]},
        {"role": "tool", "tool_name": "weather", "content": "sunny"},
    ]
    answer = client.chat(model=MODEL, messages=history, tools=[TOOL], options=SHORT)
    check("tools: an answer to what came of a call", answer.done, answer)
    free = client.chat(model=MODEL, messages=QUESTION, tools=[TOOL], options=SHORT, think=False)
    check("tools: free to call", free.done, free)
    # The shipped model cannot use tools: tool_choice, which the client does not have, makes it.
    body = {"model": MODEL, "messages": QUESTION, "tools": [TOOL], "tool_choice": "required"}
    body["options"] = {"num_predict": 400, "temperature": 0}
    whole = ollama.ChatResponse(**httpx.post(f"{URL}/api/chat", json={**body, "stream": False}, timeout=60).json())
    call = whole.message.tool_calls[0].function
    check("tools: a call with its arguments as an object", call.name == "weather" and set(call.arguments) == {"city", "days"}, whole)
    lines = httpx.post(f"{URL}/api/chat", json=body, timeout=60).text.splitlines()
    parts = [ollama.ChatResponse(**json.loads(line)) for line in lines]
    calls = [call for part in parts for call in part.message.tool_calls or []]
    check("tools: a streamed call", [one.function.arguments for one in calls] == [call.arguments], calls)


def structured() -> None:
    longer = {"num_predict": 200, "temperature": 0}
    answer = client.chat(model=MODEL, messages=QUESTION, format=Colour.model_json_schema(), options=longer)
    check("structured: a schema", isinstance(Colour.model_validate_json(answer.message.content), Colour), answer)
    answer = client.generate(model=MODEL, prompt="A colour.", format="json", options={"num_predict": 8, "temperature": 0})
    check("structured: json", answer.response.lstrip().startswith("{"), answer)


def generate() -> None:
    answer = client.generate(model=MODEL, prompt="In the beginning", raw=True, options=SHORT)
    parts = list(client.generate(model=MODEL, prompt="In the beginning", raw=True, options=SHORT, stream=True))
    check("generate: a stream has the text of the whole answer", "".join(part.response for part in parts) == answer.response)
    asked = client.generate(model=MODEL, prompt="In the beginning", system="Be brief.", options=SHORT)
    check("generate: the template is used without raw", asked.prompt_eval_count > answer.prompt_eval_count, asked)


def vectors() -> None:
    for vector in client.embed(model=MODEL, input=["a", "In the beginning"]).embeddings:
        check("vectors: a decoder gives vectors of the length 1", abs(sum(value * value for value in vector) - 1) < 1e-5, vector)


def refused() -> None:
    def fails(name: str, status: int, ask) -> None:
        try:
            ask()
        except ollama.ResponseError as error:
            check(f"errors: {name}", error.status_code == status and bool(error.error), error)
        else:
            check(f"errors: {name}", False)

    fails("fill in the middle", 400, lambda: client.generate(model=MODEL, prompt="a", suffix="b"))
    fails("pictures", 400, lambda: client.chat(model=MODEL, messages=[{"role": "user", "content": "a", "images": [b"aa"]}]))
    fails("too long", 400, lambda: client.chat(model=MODEL, messages=[{"role": "user", "content": "word " * 300_000}]))
    fails("a sampler that there is not", 400, lambda: client.generate(model=MODEL, prompt="a", options={"mirostat": 2}))
    fails("downloads", 404, lambda: client.pull("other"))


if __name__ == "__main__":
    models()
    chat()
    tools()
    structured()
    generate()
    vectors()
    refused()
