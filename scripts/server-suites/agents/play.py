"""The answers that the stand-in has the model write: a call of a tool of the agent first, then a text with the word that the tool read."""

import json
import pathlib

# The word is in a file: an agent can only know it once its tool has read the file.
WORD = "heliotrope"
NOTES = f"The word of the day is {WORD}.\n"
FIRST_TURN = "Read the file notes.txt with your tool and tell me the word of the day."
SECOND_TURN = "Repeat the word of the day once more."
FIRST_ANSWER = f"The word of the day is {WORD}."
SECOND_ANSWER = f"Once more: {WORD}."
SIDE_ANSWER = "The word of the day"
NOT_READ = "The tool did not run."


def shape_of(path):
    """The shape of a request: chat, responses, messages or completions; None if its answer is not a model's."""
    path = path.split("?")[0].rstrip("/")
    for ending, shape in (
        ("/chat/completions", "chat"),
        ("/responses", "responses"),
        ("/messages", "messages"),
        ("/completions", "completions"),
    ):
        if path.endswith(ending):
            return shape
    return None


def tool_names(body):
    """Names of the tools that a request offers, those inside namespaces too."""
    names = []
    for tool in body.get("tools") or []:
        names += tool_names(tool) if tool.get("type") == "namespace" else [tool.get("name") or tool.get("function", {}).get("name")]
    return names


class Play:
    """What one agent is answered. `tool` is the tool that reads the file, `arguments` what it is called with."""

    def __init__(self, tool=None, arguments=None, edit=None):
        self.tool = tool
        self.arguments = arguments
        # The text that asks an agent without tools for its edit.
        self.edit = edit

    def answer(self, body):
        """A text, or a pair of a tool's name and its arguments."""
        told = json.dumps(body.get("messages") or body.get("input") or body.get("prompt") or "")
        first, second = told.rfind(FIRST_TURN), told.rfind(SECOND_TURN)
        if first < 0 and second < 0:
            return SIDE_ANSWER
        if self.tool is None:
            return SECOND_ANSWER if second > first else self.edit or FIRST_ANSWER
        if self.tool not in tool_names(body):
            return SIDE_ANSWER
        if second > first:
            return SECOND_ANSWER
        after = told[first:]
        if not any(mark in after for mark in ('"tool"', '"tool_result"', '"function_call_output"', '"custom_tool_call_output"')):
            return self.tool, self.arguments
        return FIRST_ANSWER if WORD in after else NOT_READ


def as_text(answer):
    """The text that a model with Qwen2.5's template writes for an answer."""
    if isinstance(answer, str):
        return answer
    name, arguments = answer
    return "<tool_call>\n" + json.dumps({"name": name, "arguments": arguments}) + "\n</tool_call>"


def with_form(shape, body, answer):
    """The request with the form that leaves the model no other answer."""
    text = as_text(answer)
    grammar = {"type": "grammar", "grammar": "start: " + json.dumps(text)}
    if shape in ("chat", "completions"):
        return {**body, "guided_choice": [text]}
    if shape == "responses":
        return {**body, "text": {**(body.get("text") or {}), "format": grammar}}
    return {**body, "output_config": {**(body.get("output_config") or {}), "format": grammar}}


def asks_for_a_form(shape, body):
    """True if the client itself asks for a form, which then leads the answer."""
    if shape == "responses":
        return (body.get("text") or {}).get("format", {}).get("type", "text") != "text"
    if shape == "messages":
        return "format" in (body.get("output_config") or {})
    return (body.get("response_format") or {}).get("type", "text") != "text"
