"""Clients for vectors: openai, ollama, llama-index and haystack, on a made model of the shape of Qwen3-Embedding.

The first argument is the model's folder, with the vectors that sentence-transformers computes. They are equal to 0.00001.
"""

import json
import sys
from pathlib import Path

import ollama
from haystack.components.embedders import OpenAIDocumentEmbedder, OpenAITextEmbedder
from haystack.dataclasses import Document
from haystack.utils import Secret
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from openai import OpenAI

from asking import MODEL, URL, check

EXPECTED = json.loads((Path(sys.argv[1]) / "expected.json").read_text())
TEXTS = EXPECTED["texts"]


def are_right(vectors: list[list[float]]) -> bool:
    pairs = zip(vectors, EXPECTED["vectors"], strict=True)
    return all(abs(found - wanted) < 1e-5 for own, other in pairs for found, wanted in zip(own, other, strict=True))


def main() -> None:
    client = OpenAI(base_url=f"{URL}/v1", api_key="any")
    for name, options in {"base64": {}, "numbers": {"encoding_format": "float"}}.items():
        told = client.embeddings.create(model=MODEL, input=TEXTS, **options)
        check(f"openai: {name}", are_right([entry.embedding for entry in told.data]))
    told = client.embeddings.create(model=MODEL, input=EXPECTED["tokens"])
    check("openai: token ids", are_right([entry.embedding for entry in told.data]))

    client = ollama.Client(URL)
    check("ollama: embed", are_right(client.embed(MODEL, TEXTS)["embeddings"]))
    check("ollama: embeddings", are_right([client.embeddings(MODEL, text)["embedding"] for text in TEXTS]))

    index = OpenAILikeEmbedding(model_name=MODEL, api_base=f"{URL}/v1", api_key="any")
    check("llama-index: texts", are_right(index.get_text_embedding_batch(TEXTS)))
    check("llama-index: queries", are_right([index.get_query_embedding(text) for text in TEXTS]))

    options = {"model": MODEL, "api_base_url": f"{URL}/v1", "api_key": Secret.from_token("any")}
    text = OpenAITextEmbedder(**options)
    check("haystack: texts", are_right([text.run(one)["embedding"] for one in TEXTS]))
    documents = OpenAIDocumentEmbedder(**options, progress_bar=False).run([Document(content=text) for text in TEXTS])
    check("haystack: documents", are_right([document.embedding for document in documents["documents"]]))


if __name__ == "__main__":
    main()
