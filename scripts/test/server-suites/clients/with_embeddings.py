"""Clients for vectors: openai, ollama, llama-index and haystack, on a made model of the shape of Qwen3-Embedding or EmbeddingGemma.

The first argument is the model's folder, with the vectors that sentence-transformers computes. They are equal to 0.00001. llama-index and
haystack also search: the text that is asked for has to come first, and the others in the order of sentence-transformers' vectors.
"""

import json
import sys
from pathlib import Path

import ollama
from haystack.components.embedders import OpenAIDocumentEmbedder, OpenAITextEmbedder
from haystack.components.retrievers.in_memory import InMemoryEmbeddingRetriever
from haystack.dataclasses import Document
from haystack.document_stores.in_memory import InMemoryDocumentStore
from haystack.utils import Secret
from llama_index.core import VectorStoreIndex
from llama_index.core.schema import TextNode
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from openai import OpenAI

from asking import MODEL, URL, check

EXPECTED = json.loads((Path(sys.argv[1]) / "expected.json").read_text())
TEXTS = EXPECTED["texts"]


def are_right(vectors: list[list[float]]) -> bool:
    pairs = zip(vectors, EXPECTED["vectors"], strict=True)
    return all(abs(found - wanted) < 1e-5 for own, other in pairs for found, wanted in zip(own, other, strict=True))


def are_in_order(searches: list[list[str]]) -> bool:
    """True if the texts that were found for each text come by falling product of the vectors. Equal products may change places."""
    vectors = dict(zip(TEXTS, EXPECTED["vectors"], strict=True))

    def product(one: str, other: str) -> float:
        return sum(a * b for a, b in zip(vectors[one], vectors[other], strict=True))

    def is_in_order(asked: str, found: list[str]) -> bool:
        scores = [product(asked, text) for text in found]
        return found[0] == asked and set(found) == set(TEXTS) and all(a >= b - 1e-5 for a, b in zip(scores, scores[1:]))

    return all(is_in_order(asked, found) for asked, found in zip(TEXTS, searches, strict=True))


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

    retriever = VectorStoreIndex([TextNode(text=text) for text in TEXTS], embed_model=index).as_retriever(similarity_top_k=len(TEXTS))
    check("llama-index: search", are_in_order([[found.text for found in retriever.retrieve(text)] for text in TEXTS]))

    options = {"model": MODEL, "api_base_url": f"{URL}/v1", "api_key": Secret.from_token("any")}
    text = OpenAITextEmbedder(**options)
    check("haystack: texts", are_right([text.run(one)["embedding"] for one in TEXTS]))
    documents = OpenAIDocumentEmbedder(**options, progress_bar=False).run([Document(content=text) for text in TEXTS])
    check("haystack: documents", are_right([document.embedding for document in documents["documents"]]))
    store = InMemoryDocumentStore(embedding_similarity_function="cosine")
    store.write_documents(documents["documents"])
    search = InMemoryEmbeddingRetriever(store, top_k=len(TEXTS))
    found = [search.run(text.run(asked)["embedding"])["documents"] for asked in TEXTS]
    check("haystack: search", are_in_order([[document.content for document in documents] for documents in found]))


if __name__ == "__main__":
    main()
