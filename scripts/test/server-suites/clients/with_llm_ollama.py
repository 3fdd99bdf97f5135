"""llm-ollama, the plugin of the command llm."""

import os
import tempfile

from asking import MODEL, URL, check

os.environ["OLLAMA_HOST"] = URL
os.environ["LLM_USER_PATH"] = tempfile.mkdtemp()

import llm  # noqa: E402  It reads its settings when it is loaded.


def main() -> None:
    names = [model.model_id for model in llm.get_models()]
    check("models: the model is listed", f"ollama/{MODEL}" in names, names)
    model = llm.get_model(f"ollama/{MODEL}")
    settings = {"temperature": 0, "num_predict": 12}
    answer = model.prompt("What is the capital of France?", system="Be brief.", stream=False, **settings)
    check("chat: a whole answer", bool(answer.text()), answer.text())
    told = model.prompt("What is the capital of France?", system="Be brief.", stream=True, **settings)
    check("chat: a stream has the text of the whole answer", "".join(told) == answer.text(), told)
    conversation = model.conversation()
    first = conversation.prompt("Hello", **settings).text()
    check("chat: a second turn", bool(conversation.prompt("And then?", **settings).text()), first)
    schema = {"type": "object", "properties": {"share": {"type": "integer"}}, "required": ["share"]}
    data = model.prompt("A share.", schema=schema, stream=False, temperature=0, num_predict=60).text()
    check("structured: a schema", data.lstrip().startswith("{"), data)


if __name__ == "__main__":
    main()
