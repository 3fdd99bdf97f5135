"""The JSON-Schema-Test-Suite through structured output.

Every schema of the suite is either refused with 400 and a reason, or the answer is JSON that is valid by it. Each schema has five
answers: the likeliest, and four that are drawn at random and led to end as soon as they may. One that is cut by its length says
nothing; a schema whose answers are all cut is counted as such. Needs RIFFLE_URL and RIFFLE_MODEL_NAME, and the folder of the suite as
its argument; RIFFLE_END is the text of the token that ends a text.
"""

import collections
import json
import os
import pathlib
import sys
import urllib.error
import urllib.request

import jsonschema

URL = os.environ["RIFFLE_URL"]
MODEL = os.environ["RIFFLE_MODEL_NAME"]
DRAFTS = {
    "draft2020-12": (jsonschema.Draft202012Validator, "https://json-schema.org/draft/2020-12/schema"),
    "draft7": (jsonschema.Draft7Validator, "http://json-schema.org/draft-07/schema#"),
}
END = os.environ.get("RIFFLE_END", "<|eos|>")


def post(path: str, body: dict) -> tuple[int, dict]:
    request = urllib.request.Request(f"{URL}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=120) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def tries() -> list[dict]:
    """How the answers to a schema are drawn."""
    (end,) = post("/tokenize", {"content": END})[1]["tokens"]
    drawn = {"temperature": 1.5, "max_tokens": 256, "logit_bias": {str(end): 20}}
    return [{"temperature": 0, "max_tokens": 64}, *({**drawn, "seed": seed} for seed in range(4))]


def outcome(schema: object, validator: type, wishes: list[dict]) -> tuple[str, str]:
    """Outcome of a schema, and its reason."""
    found = "cut", ""
    for wish in wishes:
        body = {"model": MODEL, "prompt": "JSON:", "structured_outputs": {"json": schema}, **wish}
        status, answer = post("/v1/completions", body)
        if status == 400:
            return "refused", answer["error"]["message"]
        if status != 200:
            return "failed", f"{status}: {answer}"
        choice = answer["choices"][0]
        if choice["finish_reason"] == "length":
            continue
        found = checked(choice["text"], schema, validator)
        if found[0] != "valid":
            break
    return found


def checked(text: str, schema: object, validator: type) -> tuple[str, str]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        return "invalid", f"no JSON: {error}: {text!r}"
    try:
        validator(schema).validate(value)
    except jsonschema.ValidationError as error:
        return "invalid", f"{text}: {error.message}"
    except Exception as error:  # a schema that the validator itself cannot read, such as one that refers to another machine
        return "unchecked", f"{type(error).__name__}: {str(error)[:80]}"
    return "valid", text


def cases(folder: pathlib.Path):
    # Files of `optional` are about what validators may leave out, such as what a format means.
    for path in sorted(folder.glob("*.json")):
        for case in json.loads(path.read_text()):
            yield path.stem, case["description"], case["schema"]


def main() -> None:
    bad, wishes = 0, tries()
    for draft, (validator, address) in DRAFTS.items():
        counts = collections.Counter()
        reasons = collections.Counter()
        for name, description, schema in cases(pathlib.Path(sys.argv[1]) / draft):
            if isinstance(schema, dict):
                # The suite says by its folders which draft a schema is of.
                schema.setdefault("$schema", address)
            what, why = outcome(schema, validator, wishes)
            counts[what] += 1
            if what == "refused":
                reasons[why.split(": ", 1)[-1][:70]] += 1
            if what in ("invalid", "failed", "unchecked"):
                print(f"{what}: {draft}/{name}: {description}: {json.dumps(schema)[:200]}: {why}")
        bad += counts["invalid"] + counts["failed"]
        print(f"{draft}: {sum(counts.values())} schemas: " + ", ".join(f"{count} {what}" for what, count in sorted(counts.items())))
        for reason, count in reasons.most_common():
            print(f"    {count:4} refused: {reason}")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
