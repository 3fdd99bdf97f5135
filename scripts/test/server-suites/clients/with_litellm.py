"""litellm, as programs that know many providers use it."""

import json
import os

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm

from asking import KEY, MODEL, QUESTION, URL, WEATHER, check

litellm.telemetry = False
OPENAI = {"model": f"openai/{MODEL}", "api_base": f"{URL}/v1", "api_key": KEY, "num_retries": 0}
TOOL = {"type": "function", "function": {"name": "weather", "description": "The weather.", "parameters": WEATHER}}


def main() -> None:
    answer = litellm.completion(**OPENAI, messages=QUESTION, max_tokens=12, temperature=0)
    text = answer.choices[0].message.content
    check("chat: a whole answer", bool(text), answer)
    chunks = litellm.completion(**OPENAI, messages=QUESTION, max_tokens=12, temperature=0, stream=True)
    told = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    check("chat: a stream has the text of the whole", told == text, told)
    called = litellm.completion(**OPENAI, messages=QUESTION, tools=[TOOL], tool_choice="required", max_tokens=400, temperature=0)
    call = called.choices[0].message.tool_calls[0]
    check("tools: a required call", set(json.loads(call.function.arguments)) == {"city", "days"}, call)
    schema = {"type": "json_schema", "json_schema": {"name": "weather", "schema": WEATHER, "strict": True}}
    formed = litellm.completion(**OPENAI, messages=QUESTION, response_format=schema, max_tokens=400, temperature=0)
    check("structured: a schema", set(json.loads(formed.choices[0].message.content)) == {"city", "days"}, formed)
    response = litellm.responses(**OPENAI, input="Hello", max_output_tokens=8, temperature=0)
    check("responses: a whole response", response.output[0].content[0].text, response)
    message = litellm.completion(
        model=f"anthropic/{MODEL}", api_base=URL, api_key=KEY, messages=QUESTION, max_tokens=12, temperature=0
    )
    check("messages: the same text as by chat", message.choices[0].message.content == text, message)
    try:
        litellm.completion(**OPENAI, messages=QUESTION, max_tokens=12, extra_body={"colour": 1})
    except litellm.BadRequestError as error:
        check("errors: an unknown field is named", "colour" in str(error), error)
    else:
        check("errors: an unknown field", False)


if __name__ == "__main__":
    main()
