"""Conversations about shared documents: what is asked, what has to be answered, and how long it took."""

import concurrent.futures
import pathlib
import random
import statistics
import sys
import threading
import time

import workers

ROOT = pathlib.Path(__file__).resolve().parents[3]
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
    """Document of each conversation, by Zipf's law."""
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

    def wrong(self, right):
        """How many answers differ from the right ones."""
        return sum(self.answers.get(key) != text for key, text in right.items())

    def summary(self):
        ms = lambda share: round(1e3 * sorted(self.first_s)[min(len(self.first_s) - 1, int(share * len(self.first_s)))], 1)
        return {
            "requests": len(self.answers),
            "hit_rate": round(self.cached_tokens / self.prompt_tokens, 4),
            "read_tokens": self.prompt_tokens - self.cached_tokens,
            "first_token_ms": {"mean": round(1e3 * statistics.fmean(self.first_s), 1), "p50": ms(0.5), "p95": ms(0.95)},
            "asked_again": self.retries,
        }


def with_a_kill(arguments, router, programs, ports, right, pause_s=0):
    """Runs all conversations; kills the worker that has answered most after a quarter of the requests, and starts it again after half of them.

    The router needs `pause_s` seconds until it uses a worker again that has failed."""
    answered = lambda number: workers.metric(ports[number], "vllm:request_success_total")
    killed, total = {}, arguments.conversations * arguments.turns

    def on_answer(done):
        if done == total // 4:
            counts = [answered(number) for number in range(len(ports))]
            killed["worker"], killed["requests_before"] = counts.index(max(counts)), max(counts)
            programs[killed["worker"]].kill()
        elif done == total // 2:
            programs[killed["worker"]].start()

    ask = whole(router)
    run = Run(arguments, ask, on_answer).all()
    worker = killed["worker"]
    workers.wait_for(programs[worker], ports[worker])
    time.sleep(pause_s)
    # Documents that it held have gone to others by now; new ones may come to it.
    for number in range(60):
        if answered(worker):
            break
        status, _, answer, _ = ask({"model": "model", "prompt": f"Text {number}: {number * number} words about {number}.", "max_tokens": 2})
        if status != 200:
            sys.exit(f"the router answers with {status}: {answer}")
    summary = {key: value for key, value in run.summary().items() if key != "first_token_ms"}
    return {**summary, "wrong": run.wrong(right), **killed, "requests_after": answered(worker)}


def streamed(port):
    return lambda body: workers.stream(port, "/v1/completions", body)


def whole(port):
    def ask(body):
        status, answer = workers.post(port, "/v1/completions", body)
        if status != 200:
            return status, None, answer, {}
        return status, None, answer["choices"][0]["text"], answer["usage"]

    return ask
