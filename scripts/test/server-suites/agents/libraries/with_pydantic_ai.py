"""pydantic-ai: a tool with nested types, a second turn, and an answer of a nested type."""

import os
import sys

from pydantic import BaseModel, ConfigDict, Field
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

url, name = os.environ["RIFFLE_URL"], os.environ["RIFFLE_MODEL_NAME"]
openai = OpenAIProvider(base_url=f"{url}/v1", api_key="any")
model, settings = {
    "chat": lambda: (OpenAIChatModel(name, provider=openai), {"openai_reasoning_effort": "low"}),
    "responses": lambda: (OpenAIResponsesModel(name, provider=openai), {"openai_reasoning_effort": "medium"}),
}[sys.argv[1]]()


class Lines(BaseModel):
    first: int = Field(ge=0)
    last: int | None = None


class Place(BaseModel):
    file: str
    lines: list[Lines] = []
    after: "Place | None" = None


class Closed(BaseModel):
    # The shipped model would add keys for ever.
    model_config = ConfigDict(extra="forbid")


class Line(Closed):
    number: int = Field(ge=0, le=9)


class Word(Closed):
    text: str = Field(max_length=12)
    lines: list[Line] = Field(max_length=2)


calls = []
agent = Agent(model, instructions="You answer in one sentence.", model_settings=settings)


@agent.tool_plain
def read_notes(place: Place) -> str:
    """Reads a place of the notes."""
    calls.append(place)
    return os.environ["NOTES"]


first = agent.run_sync(os.environ["FIRST_TURN"])
assert [place.file for place in calls] == ["notes.txt"], calls
assert first.output == os.environ["FIRST_ANSWER"], first.output
second = agent.run_sync(os.environ["SECOND_TURN"], message_history=first.all_messages())
assert second.output == os.environ["SECOND_ANSWER"], second.output

# An answer of a type is a call of a tool whose parameters are the type.
typed = Agent(model, output_type=Word, model_settings=settings).run_sync(os.environ["FORM_TURN"])
assert typed.output.text and isinstance(typed.output.lines, list), typed.output
