"""The openai client for Python."""

from typing import Literal

import openai
from pydantic import BaseModel, Field

from asking import KEY, MODEL, QUESTION, URL, WEATHER, check

client = openai.OpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0)
TOOL = {"type": "function", "function": {"name": "weather", "description": "The weather.", "parameters": WEATHER}}


class Colour(BaseModel):
    name: Literal["red", "green", "blue"]
    share: int = Field(ge=0, le=100)


def whole() -> str:
    answer = client.chat.completions.create(model=MODEL, messages=QUESTION, max_tokens=12, temperature=0, seed=1, user="someone")
    choice = answer.choices[0]
    check("chat: a whole answer", bool(choice.message.content) and choice.finish_reason in ("stop", "length"), choice)
    check("chat: usage adds up", answer.usage.prompt_tokens + answer.usage.completion_tokens == answer.usage.total_tokens)
    again = client.chat.completions.create(model=MODEL, messages=QUESTION, max_tokens=12, temperature=0)
    check("chat: what was read is found again", again.usage.prompt_tokens_details.cached_tokens > 0, again.usage)
    check("chat: found again, the answer is the same", again.choices[0].message.content == choice.message.content)
    return choice.message.content


def streamed(text: str) -> None:
    chunks = list(
        client.chat.completions.create(
            model=MODEL, messages=QUESTION, max_tokens=12, temperature=0, stream=True, stream_options={"include_usage": True}
        )
    )
    told = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    check("chat: a stream has the text of the whole answer", told == text, told)
    check("chat: a stream ends with usage", chunks[-1].usage is not None and chunks[-1].usage.completion_tokens > 0)
    with client.chat.completions.stream(model=MODEL, messages=QUESTION, max_tokens=12, temperature=0) as stream:
        told = "".join(event.delta for event in stream if event.type == "content.delta")
        check("chat: the stream helper", told == text, told)


def several() -> None:
    answer = client.chat.completions.create(model=MODEL, messages=QUESTION, max_tokens=6, temperature=1, seed=3, n=3)
    check("chat: n answers", [choice.index for choice in answer.choices] == [0, 1, 2])
    again = client.chat.completions.create(model=MODEL, messages=QUESTION, max_tokens=6, temperature=1, seed=3, n=3)
    texts = [choice.message.content for choice in answer.choices]
    check("chat: a seed gives the same answers", texts == [choice.message.content for choice in again.choices], texts)


def probabilities() -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=QUESTION, max_tokens=5, temperature=0, logprobs=True, top_logprobs=3
    )
    tokens = answer.choices[0].logprobs.content
    check("logprobs: one entry a token", len(tokens) == answer.usage.completion_tokens, len(tokens))
    check("logprobs: greedy takes the likeliest", all(one.logprob == one.top_logprobs[0].logprob for one in tokens))
    text = b"".join(bytes(one.bytes) for one in tokens).decode(errors="replace")
    check("logprobs: bytes spell the text", text.startswith(answer.choices[0].message.content), text)
    echoed = client.completions.create(model=MODEL, prompt="One two three", max_tokens=1, logprobs=2, echo=True, temperature=0)
    logs = echoed.choices[0].logprobs
    check("completions: echo with logprobs", logs.token_logprobs[0] is None and len(logs.tokens) == echoed.usage.total_tokens)


def tools() -> None:
    required = {"model": MODEL, "messages": QUESTION, "tools": [TOOL], "tool_choice": "required", "temperature": 0, "max_tokens": 400}
    answer = client.chat.completions.create(**required)
    call = answer.choices[0].message.tool_calls[0]
    check("tools: a required call", call.function.name == "weather" and answer.choices[0].finish_reason == "tool_calls", answer)
    named = client.chat.completions.create(**{**required, "tool_choice": {"type": "function", "function": {"name": "weather"}}})
    check("tools: a named call", named.choices[0].message.tool_calls[0].function.arguments == call.function.arguments)
    with client.chat.completions.stream(**required) as stream:
        for _ in stream:
            pass
        streamed = stream.get_final_completion().choices[0].message.tool_calls[0]
    check("tools: a streamed call", streamed.function.arguments == call.function.arguments)
    messages = [*QUESTION, answer.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "sunny"}]
    after = client.chat.completions.create(model=MODEL, messages=messages, tools=[TOOL], max_tokens=8, temperature=0)
    check("tools: an answer to what came of a call", after.choices[0].finish_reason in ("stop", "length", "tool_calls"))
    strict = openai.pydantic_function_tool(Colour, name="colour")
    answer = client.chat.completions.parse(
        model=MODEL, messages=QUESTION, tools=[strict], tool_choice="required", temperature=0, max_tokens=400
    )
    parsed = answer.choices[0].message.tool_calls[0].function.parsed_arguments
    check("tools: strict arguments, parsed", isinstance(parsed, Colour), parsed)
    free = client.chat.completions.create(model=MODEL, messages=QUESTION, tools=[TOOL, strict], max_tokens=8, temperature=0)
    check("tools: strict and free to call", free.choices[0].finish_reason in ("stop", "length", "tool_calls"))


def structured() -> None:
    answer = client.chat.completions.parse(model=MODEL, messages=QUESTION, response_format=Colour, temperature=0, max_tokens=200)
    check("structured: pydantic", isinstance(answer.choices[0].message.parsed, Colour), answer)
    answer = client.chat.completions.create(
        model=MODEL, messages=QUESTION, response_format={"type": "json_object"}, temperature=0, max_tokens=8
    )
    check("structured: json_object", answer.choices[0].message.content.lstrip().startswith("{"))
    response = client.responses.parse(model=MODEL, input="A colour.", text_format=Colour, temperature=0, max_output_tokens=200)
    check("structured: pydantic by responses", isinstance(response.output_parsed, Colour), response)


def responses() -> None:
    response = client.responses.create(model=MODEL, input="Hello", instructions="Be brief.", max_output_tokens=9, temperature=0)
    check("responses: a whole response", response.object == "response" and len(response.output_text) > 0)
    events = list(
        client.responses.create(
            model=MODEL, input="Hello", instructions="Be brief.", max_output_tokens=9, temperature=0, stream=True
        )
    )
    told = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    check("responses: a stream has the text of the whole", told == response.output_text, told)
    check("responses: events are counted", [event.sequence_number for event in events] == list(range(len(events))))
    with client.responses.stream(model=MODEL, input="A colour.", text_format=Colour, max_output_tokens=200, temperature=0) as stream:
        for _ in stream:
            pass
        check("responses: the stream helper", isinstance(stream.get_final_response().output_parsed, Colour))
    tool = {"type": "function", "name": "weather", "parameters": WEATHER, "strict": True}
    asked = client.responses.create(
        model=MODEL, input="Weather?", tools=[tool], tool_choice="required", temperature=0, max_output_tokens=400
    )
    call = asked.output[0]
    check("responses: a call", call.type == "function_call" and call.name == "weather", asked)
    told = [{"role": "user", "content": "Weather?"}, call, {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}]
    after = client.responses.create(model=MODEL, input=told, max_output_tokens=8, temperature=0)
    check("responses: what came of a call", after.status in ("completed", "incomplete"))
    count = client.responses.input_tokens.count(model=MODEL, input="Hello", instructions="Be brief.")
    check("responses: counted tokens are those that are read", count.input_tokens == response.usage.input_tokens, count)


def refused() -> None:
    def fails(name: str, kind: type, ask) -> None:
        try:
            ask()
        except kind as error:
            check(f"errors: {name}", error.body is None or "message" in error.body, error.body)
        else:
            check(f"errors: {name}", False)

    chat = client.chat.completions.create
    fails("another model", openai.NotFoundError, lambda: chat(model="other", messages=QUESTION))
    fails("no messages", openai.BadRequestError, lambda: chat(model=MODEL, messages=[]))
    fails("a field that is not known", openai.BadRequestError, lambda: chat(model=MODEL, messages=QUESTION, extra_body={"colour": 1}))
    fails("too long", openai.BadRequestError, lambda: chat(model=MODEL, messages=[{"role": "user", "content": "word " * 300_000}]))
    stored = client.responses.create(model=MODEL, input="a", store=True, max_output_tokens=4)
    check("responses: what asks to be stored is answered", stored.status in ("completed", "incomplete"), stored)
    vector = client.embeddings.create(model=MODEL, input="a").data[0].embedding
    check("vectors: a decoder gives a vector of the length 1", abs(sum(value * value for value in vector) - 1) < 1e-5, vector)


if __name__ == "__main__":
    check("models: the model is listed", MODEL in [model.id for model in client.models.list()])
    check("models: one model", client.models.retrieve(MODEL).id == MODEL)
    streamed(whole())
    several()
    probabilities()
    tools()
    structured()
    responses()
    refused()
