"""langchain-ollama."""

from typing import Literal

from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_ollama import ChatOllama, OllamaLLM
from pydantic import BaseModel, Field

from asking import MODEL, URL, check


class Colour(BaseModel):
    """A colour and how much of it there is."""

    name: Literal["red", "green", "blue"]
    share: int = Field(ge=0, le=100)


@tool
def weather(days: Literal[1, 2, 3]) -> str:
    """The weather of the next days."""
    return f"sunny for {days} days"


def chat(tokens: int) -> ChatOllama:
    return ChatOllama(model=MODEL, base_url=URL, temperature=0, num_predict=tokens, validate_model_on_init=True)


def main() -> None:
    question = [("system", "You answer in one sentence."), ("human", "What is the capital of France?")]
    answer = chat(12).invoke(question)
    check("chat: a whole answer", bool(answer.content) and answer.usage_metadata["output_tokens"] > 0, answer)
    told = list(chat(12).stream(question))
    check("chat: a stream has the text of the whole", "".join(chunk.content for chunk in told) == answer.content)
    batch = chat(12).batch([question, question])
    check("chat: two at a time", [one.content for one in batch] == [answer.content] * 2)
    call = {"name": "weather", "args": {"days": 2}, "id": "call_1"}
    history = [HumanMessage("Weather?"), AIMessage("", tool_calls=[call]), ToolMessage("sunny", tool_call_id="call_1")]
    after = chat(8).bind_tools([weather]).invoke(history)
    check("tools: an answer to what came of a call", isinstance(after, AIMessage), after)
    colour = chat(400).with_structured_output(Colour, method="json_schema").invoke("A colour.")
    check("structured: by json_schema", isinstance(colour, Colour), colour)
    text = OllamaLLM(model=MODEL, base_url=URL, temperature=0, num_predict=8).invoke("In the beginning")
    check("generate: a text", bool(text), text)


if __name__ == "__main__":
    main()
