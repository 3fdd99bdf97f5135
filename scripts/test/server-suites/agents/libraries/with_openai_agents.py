"""The openai-agents package: an agent with a tool, over responses and over chat completions, and a second turn."""

import asyncio
import os
import sys

from agents import Agent, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, function_tool, set_tracing_disabled
from openai import AsyncOpenAI

set_tracing_disabled(True)
client = AsyncOpenAI(base_url=os.environ["RIFFLE_URL"] + "/v1", api_key="any", max_retries=0)
kind = {"responses": OpenAIResponsesModel, "chat": OpenAIChatCompletionsModel}[sys.argv[1]]
calls = []


@function_tool
def read_notes(file: str) -> str:
    """Reads a file of notes."""
    calls.append(file)
    return os.environ["NOTES"]


agent = Agent(
    name="Reader",
    instructions="You answer in one sentence.",
    model=kind(model=os.environ["RIFFLE_MODEL_NAME"], openai_client=client),
    tools=[read_notes],
)


async def main():
    first = await Runner.run(agent, os.environ["FIRST_TURN"])
    assert calls == ["notes.txt"], calls
    assert first.final_output == os.environ["FIRST_ANSWER"], first.final_output
    second = Runner.run_streamed(agent, [*first.to_input_list(), {"role": "user", "content": os.environ["SECOND_TURN"]}])
    async for _ in second.stream_events():
        pass
    assert second.final_output == os.environ["SECOND_ANSWER"], second.final_output


asyncio.run(main())
