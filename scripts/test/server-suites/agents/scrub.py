#!/usr/bin/env python3
"""Writes requests that a run has kept as small files for tests: no path, number or long text of the run stays in them.

usage: scripts/test/server-suites/agents/scrub.py AGENT SHAPE FOLDER-OF-REQUESTS FOLDER-OF-FILES
"""

import json
import pathlib
import re
import sys

import play as plays

TEXT, DESCRIPTION = 300, 60
PATHS = re.compile(r"(?<![\w.])/(?:work|tmp|root|home|usr|opt|nix)/[^\s\"'`<>()\\,;]*")
IDS = [
    (re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"), "00000000-0000-4000-8000-000000000000"),
    (re.compile(r"\b[0-9a-f]{12,}\b"), "0" * 16),
    (re.compile(r"\bses_\w{12,}"), "ses_0000"),
    (re.compile(r"\b1[0-9]{12}\b"), "1000000000000"),
    (re.compile(r"\b20\d\d-\d\d-\d\d(T[\d:.]+Z)?"), "2000-01-01"),
]


def clean(text):
    text = PATHS.sub("/home/user/project", text)
    for pattern, instead in IDS:
        text = pattern.sub(instead, text)
    return text


def shorten(text, most):
    text = clean(text)
    return text if len(text) <= most else f"{text[: most * 2 // 3].rstrip()} … {text[-most // 3 :].lstrip()}"


def scrub(value, name="", inside_tool=False):
    if isinstance(value, dict):
        inside = inside_tool or name == "tools"
        return {key: scrub(part, key, inside) for key, part in value.items()}
    if isinstance(value, list):
        return [scrub(part, name, inside_tool or name == "tools") for part in value]
    if not isinstance(value, str) or name in ("definition", "$schema"):
        return value
    return shorten(value, DESCRIPTION if inside_tool and name in ("description", "title") else TEXT)


def main(agent, shape, kept, files):
    kept = [json.loads(file.read_text()) for file in sorted(pathlib.Path(kept).glob("*.json"))]
    number = 0
    for one in kept:
        if plays.shape_of(one["path"]) != shape or not isinstance(one["body"], dict):
            continue
        number += 1
        request = {"path": one["path"], "body": scrub(one["body"])}
        file = pathlib.Path(files) / f"{agent}-{shape}-{number}.json"
        file.write_text(json.dumps(request, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
