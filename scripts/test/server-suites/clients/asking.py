"""Common parts of the clients' checks: the server's address and the questions."""

import os

URL = os.environ["RIFFLE_URL"]
MODEL = os.environ["RIFFLE_MODEL_NAME"]
KEY = "any"

# Long enough to be found again: what was read is kept by whole pages.
SYSTEM = "You answer in one sentence. " * 60
QUESTION = [
    {"role": "system", "content": SYSTEM},
    {"role": "user", "content": "What is the capital of France?"},
]

WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}


def check(name: str, holds: bool, found: object = None) -> None:
    """Ends the program where something does not hold."""
    if not holds:
        raise AssertionError(f"{name}: {found!r}")
    print(f"ok   {name}")
