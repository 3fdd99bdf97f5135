"""The clients: how each is set up against a server, and how it is asked twice."""

import dataclasses
import json
import pathlib
import shutil
import sys

import play as plays
from play import Play

HERE = pathlib.Path(__file__).parent


@dataclasses.dataclass
class Place:
    """Folders of a program: its own home, its working folder with the notes, and the folder of its package."""

    home: pathlib.Path
    work: pathlib.Path
    package: pathlib.Path
    url: str
    model: str

    def node(self, name):
        return self.package / "node_modules/.bin" / name

    def write(self, name, content):
        """Writes a settings file in the home."""
        file = self.home / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content if isinstance(content, str) else json.dumps(content, indent=2))
        return file


@dataclasses.dataclass
class Program:
    """A client. `package` is its name in versions.json, `steps` gives its variables and commands at a place.

    A step is a command, or a function that gives one once the steps before are done.
    """

    name: str
    shape: str
    play: Play
    steps: object
    package: str = ""
    # Proof of the run: "call" for a tool's call and its result, "edit" for a changed file, "form" for an answer of a form.
    shows: str = "call"

    def __post_init__(self):
        self.package = self.package or self.name


SHELL = {"command": "cat notes.txt", "description": "Read the notes"}


def claude_code(place):
    variables = {
        "ANTHROPIC_BASE_URL": place.url,
        "ANTHROPIC_AUTH_TOKEN": "any",
        "CLAUDE_CODE_AUTO_COMPACT_WINDOW": "65536",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    claude = [place.node("claude"), "-p", "--allowedTools", "Bash"]
    return variables, [[*claude, "--", plays.FIRST_TURN], [*claude, "--continue", "--", plays.SECOND_TURN]]


def codex(place, *options):
    place.write(
        ".codex/config.toml",
        f"""model = "{place.model}"
model_provider = "riffle"
model_context_window = 65536
check_for_update_on_startup = false

[analytics]
enabled = false

[model_providers.riffle]
name = "Riffle"
base_url = "{place.url}/v1"
wire_api = "responses"
""",
    )
    codex = [place.node("codex"), "exec"]
    flags = [*options, "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
    return {}, [[*codex, *flags, plays.FIRST_TURN], [*codex, "resume", "--last", *flags, plays.SECOND_TURN]]


def codex_known_model(place):
    """Codex knows some models by name, and offers other tools to these."""
    return codex(place, "-m", "gpt-5.5")


def codex_with_mcp(place, *options):
    server = [f'mcp_servers.notes.command="{sys.executable}"', f'mcp_servers.notes.args=["{HERE / "notes_server.py"}"]']
    settings = [*server, 'model_reasoning_effort="high"']
    return codex(place, *options, *(part for setting in settings for part in ("-c", setting)))


def codex_that_searches(place):
    """Codex offers known models a search for the tools of MCP servers in place of the tools."""
    return codex_with_mcp(place, "-m", "gpt-5.5")


def opencode(place):
    place.write(
        ".config/opencode/opencode.json",
        {
            "$schema": "https://opencode.ai/config.json",
            "autoupdate": False,
            "share": "disabled",
            "model": f"riffle/{place.model}",
            "provider": {
                "riffle": {
                    "npm": "@ai-sdk/openai-compatible",
                    "name": "Riffle",
                    "options": {"baseURL": f"{place.url}/v1"},
                    "models": {place.model: {"name": place.model, "limit": {"context": 65536, "output": 4096}}},
                }
            },
        },
    )
    variables = {"OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_LSP_DOWNLOAD": "1", "OPENCODE_DISABLE_AUTOUPDATE": "1"}
    opencode = [place.node("opencode"), "run"]
    return variables, [[*opencode, plays.FIRST_TURN], [*opencode, "--continue", plays.SECOND_TURN]]


def pi(place):
    place.write(
        ".pi/agent/models.json",
        {
            "providers": {
                "riffle": {
                    "baseUrl": f"{place.url}/v1",
                    "api": "openai-completions",
                    "apiKey": "any",
                    "models": [{"id": place.model, "reasoning": True, "contextWindow": 65536, "maxTokens": 4096}],
                }
            }
        },
    )
    pi = [place.node("pi"), "--provider", "riffle", "--model", place.model, "-p"]
    return {"PI_OFFLINE": "1", "PI_TELEMETRY": "0"}, [[*pi, plays.FIRST_TURN], [*pi, "--continue", plays.SECOND_TURN]]


def continue_cli(place):
    config = place.write(
        "riffle.yaml",
        f"""name: Riffle
version: 1.0.0
schema: v1
models:
  - name: Riffle
    provider: openai
    model: {place.model}
    apiBase: {place.url}/v1
    apiKey: any
    roles: [chat, edit, apply]
    capabilities: [tool_use]
    defaultCompletionOptions:
      contextLength: 65536
      maxTokens: 4096
""",
    )
    cn = [place.node("cn"), "--config", str(config), "--auto", "-p"]
    return {"CONTINUE_TELEMETRY_ENABLED": "0"}, [[*cn, plays.FIRST_TURN], [*cn, "--resume", plays.SECOND_TURN]]


def cline(place):
    cline = place.node("cline")
    setup = [cline, "auth", "-p", "openai", "-k", "any", "-m", place.model, "-b", f"{place.url}/v1"]

    def second():
        # A session goes on in a terminal alone.
        sessions = place.home / ".cline/data/sessions"
        typed = [sys.executable, HERE / "terminal.py", plays.SECOND_TURN, plays.SECOND_ANSWER, sessions]
        return [*typed, cline, "--id", max(sessions.iterdir()).name]

    return {"CLINE_NO_AUTO_UPDATE": "1", "CLINE_SESSION_BACKEND_MODE": "local"}, [setup, [cline, plays.FIRST_TURN], second]


def aider(place):
    limits = {"max_input_tokens": 61440, "max_output_tokens": 4096}
    place.write(
        ".aider.model.metadata.json",
        {f"openai/{place.model}": {**limits, "litellm_provider": "openai", "mode": "chat"}},
    )
    variables = {"OPENAI_API_BASE": f"{place.url}/v1", "OPENAI_API_KEY": "any"}
    variables |= {"AIDER_ANALYTICS": "false", "AIDER_CHECK_UPDATE": "false"}
    aider = [place.package / "bin/aider", "--model", f"openai/{place.model}", "--edit-format", "diff"]
    aider += ["--yes-always", "--no-show-model-warnings", "--restore-chat-history", "notes.txt", "--message"]
    return variables, [[*aider, plays.FIRST_TURN], [*aider, plays.SECOND_TURN]]


def promptfoo(place):
    call = {"id": "call_1", "type": "function", "function": {"name": "read_notes", "arguments": "{}"}}
    history = [
        {"role": "user", "content": plays.FIRST_TURN},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": plays.NOTES},
    ]
    second = [*history, {"role": "assistant", "content": plays.FIRST_ANSWER}, {"role": "user", "content": plays.SECOND_TURN}]
    tests = [
        (history[:1], [{"type": "is-valid-openai-tools-call"}]),
        (history, [{"type": "equals", "value": plays.FIRST_ANSWER}]),
        (second, [{"type": "equals", "value": plays.SECOND_ANSWER}]),
    ]
    parameters = {"type": "object", "properties": {"file": {"type": "string"}}}
    tool = {"name": "read_notes", "description": "Reads the notes.", "parameters": parameters}
    config = place.write(
        "promptfoo.json",
        {
            "prompts": ["{{messages}}"],
            "providers": [
                {
                    "id": f"openai:chat:{place.model}",
                    "config": {"apiBaseUrl": f"{place.url}/v1", "apiKey": "any", "tools": [{"type": "function", "function": tool}]},
                }
            ],
            "tests": [{"vars": {"messages": json.dumps(messages)}, "assert": asserted} for messages, asserted in tests],
        },
    )
    variables = {"PROMPTFOO_DISABLE_TELEMETRY": "1", "PROMPTFOO_DISABLE_UPDATE": "1", "PROMPTFOO_DISABLE_REMOTE_GENERATION": "1"}
    return variables, [[place.node("promptfoo"), "eval", "--no-cache", "--no-progress-bar", "-c", config]]


def python_script(name, *arguments):
    def steps(place):
        return {}, [[place.package / "bin/python", HERE / "libraries" / name, *arguments]]

    return steps


def ai_sdk(shape):
    def steps(place):
        # A module is looked for from the folder that its importer lies in.
        script = place.package / "with_ai_sdk.mjs"
        shutil.copy(HERE / "libraries/with_ai_sdk.mjs", script)
        return {}, [["node", script, shape]]

    return steps


PATCH = {"input": "*** Begin Patch\n*** Add File: new.txt\n+It was read.\n*** End Patch\n"}
EDIT = f"""notes.txt
```
<<<<<<< SEARCH
{plays.NOTES}=======
{plays.NOTES}It was read.
>>>>>>> REPLACE
```"""

AI_SDK = {"responses": "responses", "chat": "chat", "compatible": "chat", "anthropic": "messages"}
INSTRUCTOR = {"TOOLS": "chat", "TOOLS_STRICT": "chat", "JSON": "chat", "JSON_SCHEMA": "chat", "RESPONSES_TOOLS": "responses"}
NESTED = Play(("read_notes", {"file": "notes.txt", "lines": [{"first": 1}]}))
CAT = Play(("exec_command", {"cmd": "cat notes.txt"}))
SEARCH = Play(("tool_search", {"query": "notes"}), ("mcp__notes__read_notes", {}))
READ_NOTES = Play(("read_notes", {"file": "notes.txt"}))
NO_TOOL = Play()
DATA = Play(text={"text": plays.WORD, "place": {"file": "notes.txt", "line": 1}})

PROGRAMS = [
    Program("claude-code", "messages", Play(("Bash", SHELL)), claude_code),
    Program("codex", "responses", CAT, codex),
    Program("codex, a known model", "responses", CAT, codex_known_model, "codex"),
    Program("codex, a tool of an MCP server", "responses", Play(("mcp__notes__read_notes", {})), codex_with_mcp, "codex"),
    Program("codex, a search for tools", "responses", SEARCH, codex_that_searches, "codex"),
    Program("codex, apply_patch", "responses", Play(("apply_patch", PATCH), proof="Success"), codex_known_model, "codex"),
    Program("opencode", "chat", Play(("bash", SHELL)), opencode),
    Program("pi", "chat", Play(("bash", {"command": "cat notes.txt"})), pi),
    Program("continue", "chat", Play(("Bash", {"command": "cat notes.txt"})), continue_cli),
    Program("cline", "chat", Play(("run_commands", {"commands": ["cat notes.txt"]})), cline),
    Program("aider", "chat", Play(text=EDIT), aider, shows="edit"),
    *(Program(f"ai-sdk, {name}", shape, READ_NOTES, ai_sdk(name), "ai-sdk") for name, shape in AI_SDK.items()),
    Program("ai-sdk, completion", "completions", NO_TOOL, ai_sdk("completion"), "ai-sdk", shows="text"),
    *(
        Program(f"openai-agents, {shape}", shape, READ_NOTES, python_script("with_openai_agents.py", shape), "openai-agents")
        for shape in ("responses", "chat")
    ),
    *(
        Program(f"pydantic-ai, {shape}", shape, NESTED, python_script("with_pydantic_ai.py", shape), "pydantic-ai")
        for shape in ("responses", "chat")
    ),
    *(
        Program(f"instructor, {mode}", shape, DATA, python_script("with_instructor.py", mode), "instructor", shows="form")
        for mode, shape in INSTRUCTOR.items()
    ),
    Program("guidance", "chat", NO_TOOL, python_script("with_guidance.py"), shows="form"),
    Program("promptfoo", "chat", READ_NOTES, promptfoo),
]
