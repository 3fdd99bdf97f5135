"""instructor: an answer of a nested type by each of its modes, and a second turn."""

import os
import sys

import instructor
from openai import OpenAI
from pydantic import BaseModel, ConfigDict, Field

client = OpenAI(base_url=os.environ["RIFFLE_URL"] + "/v1", api_key="any", max_retries=0)
mode = sys.argv[1]
patched = instructor.from_openai(client, mode=getattr(instructor.Mode, mode))


class Closed(BaseModel):
    # The shipped model would add keys for ever.
    model_config = ConfigDict(extra="forbid")


class Place(Closed):
    file: str = Field(max_length=12)
    line: int = Field(ge=0, le=9)


class Word(Closed):
    text: str = Field(max_length=12)
    place: Place


messages = [{"role": "user", "content": os.environ["FORM_TURN"]}]
asked = {"model": os.environ["RIFFLE_MODEL_NAME"], "response_model": Word, "max_retries": 0}
limit = "max_output_tokens" if mode.startswith("RESPONSES") else "max_tokens"
word = patched.chat.completions.create(messages=messages, **asked, **{limit: 400})
assert isinstance(word.place, Place), word
messages += [{"role": "assistant", "content": word.model_dump_json()}, {"role": "user", "content": os.environ["FORM_TURN"]}]
again = patched.chat.completions.create(messages=messages, **asked, **{limit: 400})
assert isinstance(again.place, Place), again
