"""The agents of the command line: how each is set up against a server, and how it is asked twice."""

import dataclasses
import json
import os
import pathlib

import play as plays
from play import Play

# The programs may reach nothing but the server: any other request goes to a port where nothing listens.
NOWHERE = "http://127.0.0.1:9"


@dataclasses.dataclass
class Place:
    """Where a program runs: its own home, a folder with the notes, and the folder that its package was installed in."""

    home: pathlib.Path
    work: pathlib.Path
    package: pathlib.Path
    url: str
    model: str

    def node(self, name):
        return str(self.package / "node_modules" / ".bin" / name)

    def write(self, name, content):
        """Writes a settings file in the home."""
        file = self.home / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content if isinstance(content, str) else json.dumps(content, indent=2))
        return file


@dataclasses.dataclass
class Program:
    name: str
    packages: list
    play: Play
    # Of a place: the variables, the command of the first turn and that of the second.
    setting: object
    shape: str
    # True if a file must have changed, since the program calls no tools.
    edits: bool = False


SHELL = {"command": "cat notes.txt", "description": "Read the notes"}


def claude_code(place):
    variables = {
        "ANTHROPIC_BASE_URL": place.url,
        "ANTHROPIC_AUTH_TOKEN": "any",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
        "DISABLE_TELEMETRY": "1",
    }
    claude = [place.node("claude"), "-p", "--allowedTools", "Bash"]
    return variables, [*claude, "--", plays.FIRST_TURN], [*claude, "--continue", "--", plays.SECOND_TURN]


def codex(place):
    place.write(
        ".codex/config.toml",
        f"""model = "{place.model}"
model_provider = "riffle"
check_for_update_on_startup = false

[analytics]
enabled = false

[model_providers.riffle]
name = "Riffle"
base_url = "{place.url}/v1"
wire_api = "responses"
""",
    )
    codex = [place.node("codex"), "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
    return {}, [*codex, plays.FIRST_TURN], [*codex, "resume", "--last", plays.SECOND_TURN]


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
    return variables, [*opencode, plays.FIRST_TURN], [*opencode, "--continue", plays.SECOND_TURN]


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
    return {"PI_OFFLINE": "1", "PI_TELEMETRY": "0"}, [*pi, plays.FIRST_TURN], [*pi, "--continue", plays.SECOND_TURN]


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
    return {"CONTINUE_TELEMETRY_ENABLED": "0"}, [*cn, plays.FIRST_TURN], [*cn, "--resume", plays.SECOND_TURN]


def cline(place):
    cline = place.node("cline")
    setup = [cline, "auth", "-p", "openai", "-k", "any", "-m", place.model, "-b", f"{place.url}/v1"]

    def second():
        sessions = sorted((place.home / ".cline/data/sessions").iterdir())
        return [cline, "--json", "--id", sessions[-1].name, plays.SECOND_TURN]

    variables = {"CLINE_TELEMETRY_DISABLED": "1", "CLINE_NO_AUTO_UPDATE": "1"}
    return variables, [setup, [cline, plays.FIRST_TURN]], second


def aider(place):
    place.write(
        ".aider.model.metadata.json",
        {f"openai/{place.model}": {"max_input_tokens": 61440, "max_output_tokens": 4096, "litellm_provider": "openai", "mode": "chat"}},
    )
    variables = {"OPENAI_API_BASE": f"{place.url}/v1", "OPENAI_API_KEY": "any", "AIDER_ANALYTICS": "false", "AIDER_CHECK_UPDATE": "false"}
    aider = [
        str(place.package / "bin" / "aider"),
        *("--model", f"openai/{place.model}", "--edit-format", "diff", "--yes-always", "--no-git", "--no-show-model-warnings"),
        *("--restore-chat-history", "notes.txt", "--message"),
    ]
    return variables, [*aider, plays.FIRST_TURN], [*aider, plays.SECOND_TURN]


def promptfoo(place):
    raise NotImplementedError


EDIT = f"""notes.txt
```
<<<<<<< SEARCH
{plays.NOTES}=======
{plays.NOTES}It was read.
>>>>>>> REPLACE
```"""

PROGRAMS = [
    Program("claude-code", ["@anthropic-ai/claude-code"], Play("Bash", SHELL), claude_code, "messages"),
    Program("codex", ["@openai/codex"], Play("exec_command", {"cmd": "cat notes.txt"}), codex, "responses"),
    Program("opencode", ["opencode-ai"], Play("bash", SHELL), opencode, "chat"),
    Program("pi", ["@earendil-works/pi-coding-agent"], Play("bash", {"command": "cat notes.txt"}), pi, "chat"),
    Program("continue", ["@continuedev/cli"], Play("Bash", {"command": "cat notes.txt"}), continue_cli, "chat"),
    Program("cline", ["cline"], Play("run_commands", {"commands": ["cat notes.txt"]}), cline, "chat"),
    Program("aider", ["aider-chat"], Play(edit=EDIT), aider, "chat", edits=True),
]
