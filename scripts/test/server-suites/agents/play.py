"""The answers that the stand-in has the model write: first calls of the client's tools, then a text with the word that a tool read."""

import json

# The word is in a file: a client can only tell it once its tool has read the file.
WORD = "heliotrope"
NOTES = f"The word of the day is {WORD}.\n"
FIRST_TURN = "Read the file notes.txt with your tool and tell me the word of the day."
SECOND_TURN = "Repeat the word of the day once more."
FORM_TURN = "Tell me the word of the day and its place as data."
FIRST_ANSWER = f"The word of the day is {WORD}."
SECOND_ANSWER = f"Once more: {WORD}."
SIDE_ANSWER = "A word"
NOT_READ = "The tool did not run."
RESULTS = ('"role": "tool"', '"tool_result"', '"function_call_output"', '"custom_tool_call_output"', '"tool_search_output"')


def shape_of(path):
    """The shape of a request: chat, responses, messages or completions; None if its answer is not a model's."""
    path = path.split("?")[0].rstrip("/")
    endings = {"/chat/completions": "chat", "/responses": "responses", "/messages": "messages", "/completions": "completions"}
    return next((shape for ending, shape in endings.items() if path.endswith(ending)), None)


def tool_names(body):
    """Names of the tools that a request offers, as the model sees them: those of a namespace have its name before theirs."""
    names = []
    for tool in body.get("tools") or []:
        name = tool.get("name") or tool.get("function", {}).get("name") or tool.get("type")
        names += [f"{name}__{inner}" for inner in tool_names(tool)] if tool.get("type") == "namespace" else [name]
    return names


class Play:
    """The answers to one client.

    `calls` are pairs of a tool's name and its arguments, in their order. `proof` is a text that is in the last tool's result if the
    tool ran, and nowhere else. A client without tools is answered with `text`, which may be data for one that asks for JSON.
    """

    def __init__(self, *calls, proof=WORD, text=FIRST_ANSWER):
        self.calls = calls
        self.proof = proof
        self.text = text

    def answer(self, body):
        """A text, data, or a pair of a tool's name and its arguments."""
        told = json.dumps(body.get("messages") or body.get("input") or body.get("prompt") or "")
        first, second, form = (told.rfind(turn) for turn in (FIRST_TURN, SECOND_TURN, FORM_TURN))
        if form > max(first, second):
            return self.text
        if max(first, second) < 0 or (self.calls and self.calls[0][0] not in tool_names(body)):
            # Clients ask for titles and summaries, too.
            return SIDE_ANSWER
        if second > first:
            return SECOND_ANSWER
        if not self.calls:
            return self.text
        done = sum(told[first:].count(mark) for mark in RESULTS)
        if done < len(self.calls):
            return self.calls[done]
        return FIRST_ANSWER if self.proof in told[first:] else NOT_READ


def as_text(answer):
    """The text that a model with Qwen2.5's template writes for an answer."""
    if isinstance(answer, str):
        return answer
    if isinstance(answer, dict):
        return json.dumps(answer)
    name, arguments = answer
    return "<tool_call>\n" + json.dumps({"name": name, "arguments": arguments}) + "\n</tool_call>"


def has_form(shape, body):
    """True if the client itself asks for a form, or for a tool by name: the answer is then held to that."""
    choice = body.get("tool_choice") or "auto"
    choice = choice.get("type") if isinstance(choice, dict) else choice
    if choice not in ("auto", "none") or "guided_grammar" in body:
        return True
    if shape == "responses":
        return (body.get("text") or {}).get("format", {}).get("type", "text") != "text"
    if shape == "messages":
        return "format" in (body.get("output_config") or {})
    return (body.get("response_format") or {}).get("type", "text") not in ("text", "json_object")


def not_strict(value):
    """A copy in which no tool is strict: strict tools are a form of their own, and an answer has one form."""
    if isinstance(value, dict):
        return {name: False if name == "strict" else not_strict(part) for name, part in value.items()}
    return [not_strict(part) for part in value] if isinstance(value, list) else value


def with_form(shape, body, answer):
    """The request with the form that leaves the model no other answer."""
    text = as_text(answer)
    if body.get("tools"):
        body = {**body, "tools": not_strict(body["tools"])}
    grammar = {"type": "grammar", "grammar": "start: " + json.dumps(text)}
    if (body.get("response_format") or {}).get("type") == "json_object":
        return {**body, "response_format": {"type": "json_object", "schema": {"enum": [answer]}}}
    if shape in ("chat", "completions"):
        return {**body, "guided_choice": [text]}
    if shape == "responses":
        return {**body, "text": {**(body.get("text") or {}), "format": grammar}}
    return {**body, "output_config": {**(body.get("output_config") or {}), "format": grammar}}
