"""Conversations about shared documents: what is asked, what has to be answered, and how long it took."""

import concurrent.futures
import pathlib
import random
import statistics
import threading

import workers

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
WORDS = (ROOT / "fixtures/text/prophets.txt").read_text().split()
QUESTIONS = ["What comes first?", "And then?", "Who says so?", "Why is that?", "What is it about?", "How does it end?"]


def add_options(parser):
    parser.add_argument("--documents", type=int, default=12)
    parser.add_argument("--words", type=int, default=1000, help="words of a document")
    parser.add_argument("--conversations", type=int, default=60)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--clients", type=int, default=3, help="conversations at a time")
    parser.add_argument("--tokens", type=int, default=16, help="tokens of an answer")
    parser.add_argument("--seed", type=int, default=1)


def conversations(arguments):
    """What each conversation is about: a document, by Zipf's law."""
    rng = random.Random(arguments.seed)
    weights = [1 / (rank + 1) for rank in range(arguments.documents)]
    documents = []
    for number in range(arguments.documents):
        start = number * arguments.words % (len(WORDS) - arguments.words)
        documents.append(f"Document {number}. " + " ".join(WORDS[start : start + arguments.words]))
    for number in range(arguments.conversations):
        [document] = rng.choices(documents, weights)
        yield document + f"\n\nConversation {number}.\n"


class Run:
    """All conversations, so many at a time, each turn after the one before. `ask` answers a prompt with (status, first token, text, usage)."""

    def __init__(self, arguments, ask, on_answer=lambda done: None):
        self.arguments, self.ask, self.on_answer = arguments, ask, on_answer
        self.lock = threading.Lock()
        self.answers, self.first_s, self.prompt_tokens, self.cached_tokens, self.retries = {}, [], 0, 0, 0

    def converse(self, number, beginning):
        text = beginning
        for turn in range(self.arguments.turns):
            text += f"Question: {QUESTIONS[(number + turn) % len(QUESTIONS)]}\nAnswer:"
            body = {"model": "model", "prompt": text, "max_tokens": self.arguments.tokens, "temperature": 0}
            for attempt in range(5):
                status, first, answer, usage = self.ask(body)
                if status == 200:
                    break
                with self.lock:
                    self.retries += 1
            else:
                raise SystemExit(f"no answer after five attempts: {status} {answer}")
            with self.lock:
                self.answers[number, turn] = answer
                self.first_s.append(first or 0.0)
                self.prompt_tokens += usage["prompt_tokens"]
                self.cached_tokens += (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
                done = len(self.answers)
            self.on_answer(done)
            text += answer + "\n"

    def all(self):
        with concurrent.futures.ThreadPoolExecutor(self.arguments.clients) as pool:
            work = [pool.submit(self.converse, number, text) for number, text in enumerate(conversations(self.arguments))]
            for conversation in work:
                conversation.result()
        return self

    def summary(self):
        ms = lambda share: round(1e3 * sorted(self.first_s)[min(len(self.first_s) - 1, int(share * len(self.first_s)))], 1)
        return {
            "requests": len(self.answers),
            "hit_rate": round(self.cached_tokens / self.prompt_tokens, 4),
            "read_tokens": self.prompt_tokens - self.cached_tokens,
            "first_token_ms": {"mean": round(1e3 * statistics.fmean(self.first_s), 1), "p50": ms(0.5), "p95": ms(0.95)},
            "asked_again": self.retries,
        }


def streamed(port):
    return lambda body: workers.stream(port, "/v1/completions", body)


def whole(port):
    def ask(body):
        status, answer = workers.post(port, "/v1/completions", body)
        if status != 200:
            return status, None, answer, {}
        return status, None, answer["choices"][0]["text"], answer["usage"]

    return ask
