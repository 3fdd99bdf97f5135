"""langchain-openai."""

from typing import Literal

from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, Field

from asking import KEY, MODEL, URL, check


class Colour(BaseModel):
    """A colour and how much of it there is."""

    name: Literal["red", "green", "blue"]
    share: int = Field(ge=0, le=100)


@tool
def weather(days: Literal[1, 2, 3]) -> str:
    """The weather of the next days."""
    return f"sunny for {days} days"


def chat(**options) -> ChatOpenAI:
    return ChatOpenAI(model=MODEL, base_url=f"{URL}/v1", api_key=KEY, temperature=0, max_retries=0, **options)


def main() -> None:
    question = [("system", "You answer in one sentence."), ("human", "What is the capital of France?")]
    answer = chat(max_tokens=12).invoke(question)
    check("chat: a whole answer", bool(answer.content) and answer.usage_metadata["output_tokens"] > 0, answer)
    told = list(chat(max_tokens=12).stream(question))
    check("chat: a stream has the text of the whole", "".join(chunk.content for chunk in told) == answer.content)
    batch = chat(max_tokens=12).batch([question, question])
    check("chat: two at a time", [one.content for one in batch] == [answer.content] * 2)
    logs = chat(max_tokens=4, logprobs=True, top_logprobs=2).invoke(question)
    check("chat: logprobs", len(logs.response_metadata["logprobs"]["content"]) == logs.usage_metadata["output_tokens"])
    called = chat(max_tokens=400).bind_tools([weather], tool_choice="any", strict=True).invoke("Weather?")
    check("tools: a required call", bool(called.tool_calls) and called.tool_calls[0]["name"] == "weather", called)
    result = ToolMessage(weather.invoke(called.tool_calls[0]["args"]), tool_call_id=called.tool_calls[0]["id"])
    after = chat(max_tokens=8).bind_tools([weather]).invoke([HumanMessage("Weather?"), called, result])
    check("tools: an answer to what came of a call", isinstance(after, AIMessage))
    for method in ("json_schema", "function_calling"):
        colour = chat(max_tokens=400).with_structured_output(Colour, method=method, strict=True).invoke("A colour.")
        check(f"structured: by {method}", isinstance(colour, Colour), colour)
    response = chat(max_tokens=12, use_responses_api=True).invoke("Hello")
    check("responses: a whole response", bool(response.text), response)
    told = list(chat(max_tokens=12, use_responses_api=True).stream("Hello"))
    check("responses: a stream has the text of the whole", "".join(chunk.text for chunk in told) == response.text)


if __name__ == "__main__":
    main()
