"""guidance: a grammar that holds an answer, and a second turn."""

import os

from guidance import assistant, gen, select, user
from guidance.models.experimental import VLLMModel

asked = VLLMModel(os.environ["RIFFLE_MODEL_NAME"], base_url=os.environ["RIFFLE_URL"] + "/v1", api_key="any", echo=False)
with user():
    asked += os.environ["FORM_TURN"]
with assistant():
    asked += select(["heliotrope", "azure"], name="word")
assert asked["word"] in ("heliotrope", "azure"), asked["word"]
with user():
    asked += os.environ["FORM_TURN"]
with assistant():
    asked += gen(regex=r"[0-9]{3}", name="digits")
assert asked["digits"].isdigit() and len(asked["digits"]) == 3, asked["digits"]
