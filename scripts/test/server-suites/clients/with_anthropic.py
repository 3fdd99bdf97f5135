"""The anthropic client for Python."""

import anthropic
from pydantic import BaseModel, Field

from asking import KEY, MODEL, SYSTEM, URL, WEATHER, check

client = anthropic.Anthropic(base_url=URL, api_key=KEY, max_retries=0)
ASKED = {
    "model": MODEL,
    "max_tokens": 12,
    "messages": [{"role": "user", "content": "What is the capital of France?"}],
    "extra_body": {"temperature": 0},
}
TOOL = {"name": "weather", "description": "The weather.", "input_schema": WEATHER}


class Share(BaseModel):
    share: int = Field(ge=0, le=100)


def text_of(message: anthropic.types.Message) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


def whole_and_streamed() -> None:
    message = client.messages.create(**ASKED, system=SYSTEM, metadata={"user_id": "someone"})
    check("messages: a whole message", message.role == "assistant" and text_of(message), message)
    check("messages: why it ended", message.stop_reason in ("end_turn", "max_tokens"))
    with client.messages.stream(**ASKED, system=SYSTEM) as stream:
        told = "".join(stream.text_stream)
        final = stream.get_final_message()
    check("messages: a stream has the text of the whole", told == text_of(message) == text_of(final), told)
    check("messages: a stream has usage", final.usage.output_tokens == message.usage.output_tokens)
    blocks = [{"type": "text", "text": SYSTEM, "cache_control": {"type": "ephemeral"}}]
    again = client.messages.create(**ASKED, system=blocks)
    check("messages: what was read is found again", again.usage.cache_read_input_tokens > 0, again.usage)
    counted = client.messages.count_tokens(model=MODEL, messages=ASKED["messages"], system=blocks)
    read = again.usage.input_tokens + again.usage.cache_read_input_tokens
    check("messages: counted tokens are those that are read", counted.input_tokens == read, counted)
    begun = [*ASKED["messages"], {"role": "assistant", "content": "The capital of France is"}]
    going_on = client.messages.create(**{**ASKED, "messages": begun})
    check("messages: an answer that is begun goes on", len(text_of(going_on)) > 0)
    stopped = client.messages.create(**{**ASKED, "max_tokens": 64}, stop_sequences=[text_of(message)[3:6]])
    check("messages: stop sequences", stopped.stop_reason == "stop_sequence" and stopped.stop_sequence, stopped)


def tools() -> None:
    asked = {**ASKED, "max_tokens": 400, "tools": [TOOL], "tool_choice": {"type": "any"}}
    message = client.messages.create(**asked)
    call = message.content[-1]
    check("tools: a required call", call.type == "tool_use" and call.name == "weather", message)
    check("tools: why it ended", message.stop_reason == "tool_use")
    with client.messages.stream(**{**asked, "tool_choice": {"type": "tool", "name": "weather"}}) as stream:
        final = stream.get_final_message()
    check("tools: a streamed call", final.content[-1].input == call.input, final)
    result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "sunny"}]}
    messages = [*ASKED["messages"], {"role": "assistant", "content": message.content}, {"role": "user", "content": [result]}]
    after = client.messages.create(**{**ASKED, "messages": messages, "tools": [TOOL]})
    check("tools: an answer to what came of a call", after.stop_reason in ("end_turn", "max_tokens", "tool_use"))


def structured() -> None:
    message = client.messages.parse(**{**ASKED, "max_tokens": 200}, output_format=Share)
    check("structured: pydantic", isinstance(message.parsed_output, Share), message)


def refused() -> None:
    def fails(name: str, kind: type, ask) -> None:
        try:
            ask()
        except kind as error:
            check(f"errors: {name}", error.body["type"] == "error" and error.body["error"]["message"], error.body)
        else:
            check(f"errors: {name}", False)

    create = client.messages.create
    fails("another model", anthropic.NotFoundError, lambda: create(**{**ASKED, "model": "other"}))
    fails("a length of 0", anthropic.BadRequestError, lambda: create(**{**ASKED, "max_tokens": 0}))
    fails("an unknown field", anthropic.BadRequestError, lambda: create(**{**ASKED, "extra_body": {"colour": 1}}))
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
    shown = [{"role": "user", "content": [image]}]
    fails("an image", anthropic.BadRequestError, lambda: create(**{**ASKED, "messages": shown}))
    search = {"type": "web_search_20250305", "name": "web_search"}
    check("tools: one of Anthropic's servers is left out", create(**ASKED, tools=[search]).stop_reason is not None)


if __name__ == "__main__":
    check("models: the model is listed", MODEL in [model.id for model in client.models.list()])
    whole_and_streamed()
    tools()
    structured()
    refused()
