#!/usr/bin/env python3
"""The second turn of an agent's conversation: time to first token, and the share of the prompt that is found read.

usage: scripts/test/server-suites/agents/second_turn.py riffle MODEL TOKENS FOLDER      RIFFLE is the command; also after a restart with --prefix-cache FOLDER
       scripts/test/server-suites/agents/second_turn.py llama.cpp MODEL TOKENS PYTHON   PYTHON has the package xllamacpp, which holds llama.cpp's server

The conversation has a system prompt and a question of some TOKENS tokens together, as agents send them. The first turn reads it. The
second turn has the first answer, the text of a file and another question behind it. The servers listen on 127.0.0.1 alone, with two threads.
"""

import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[4]
WORDS = (ROOT / "fixtures/text/prophets.txt").read_text().split()
ANSWER_TOKENS, MARGIN, ROUNDS, PROBE_WORDS = 24, 600, 3, 1500
# Starts llama-server with its own defaults: prompts are cached.
LLAMA_CPP = """
import sys, time, xllamacpp
parameters = xllamacpp.CommonParams()
parameters.model.path, parameters.n_ctx, parameters.port = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
parameters.hostnames, parameters.n_parallel = ["127.0.0.1"], 1
parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = 2
print(xllamacpp.get_system_info(), flush=True)
server = xllamacpp.Server(parameters)
time.sleep(3600)
"""


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class Server:
    def __init__(self, command, port, log):
        self.url = f"http://127.0.0.1:{port}"
        self.process = subprocess.Popen(list(map(str, command)), stdout=log, stderr=subprocess.STDOUT)
        for _ in range(600):
            try:
                urllib.request.urlopen(f"{self.url}/health", timeout=5).close()
                return
            except OSError:
                if self.process.poll() is not None:
                    raise SystemExit("the server ended: see its log") from None
                time.sleep(0.1)
        raise SystemExit("the server does not answer")

    def stop(self):
        self.process.terminate()
        self.process.wait()

    def turn(self, messages):
        """The answer, seconds to the first token, tokens of the prompt and those that were read before."""
        asked = {
            **{"model": "model", "messages": messages, "temperature": 0, "max_tokens": ANSWER_TOKENS},
            **{"stream": True, "stream_options": {"include_usage": True}},
        }
        body, headers = json.dumps(asked).encode(), {"content-type": "application/json"}
        request = urllib.request.Request(f"{self.url}/v1/chat/completions", body, headers)
        begin, first, told, usage = time.monotonic(), None, "", {}
        with urllib.request.urlopen(request, timeout=3600) as response:
            for line in response:
                if not line.startswith(b"data: {"):
                    continue
                event = json.loads(line[6:])
                usage = event.get("usage") or usage
                delta = event["choices"][0]["delta"] if event.get("choices") else {}
                part = delta.get("content") or delta.get("reasoning_content") or delta.get("tool_calls")
                if part and first is None:
                    first = time.monotonic() - begin
                told += part if isinstance(part, str) else ""
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
        return told or "It is done.", first, usage["prompt_tokens"], cached


def conversation(begin, words):
    """The messages of a first turn. Each beginning is another conversation, whose text no other has read."""
    text = " ".join((WORDS * (words // len(WORDS) + 1))[:words])
    return [
        {"role": "system", "content": f"{begin}. You are an agent, and you work in the folder of a user. {text}"},
        {"role": "user", "content": "Read the file notes.txt."},
    ]


def words_of(server, tokens):
    """About so many words make a first turn of so many tokens."""
    few, many = (server.turn(conversation("Probe", words))[2] for words in (0, PROBE_WORDS))
    return int((tokens - few) * PROBE_WORDS / (many - few))


def later(messages, answer):
    return [
        *messages,
        {"role": "assistant", "content": answer},
        {"role": "user", "content": "The file says: the lamp is lit at dusk. What is lit?"},
    ]


def report(name, what, results):
    first = sorted(result[1] for result in results)
    prompt, cached = results[-1][2], min(result[3] for result in results)
    seconds = f"{first[len(first) // 2]:.2f} s ({first[0]:.2f} to {first[-1]:.2f})"
    print(f"| {name} | {what} | {prompt} | {seconds} | {cached} ({100 * cached / prompt:.1f}%) |", flush=True)


def main(kind, model, tokens, place):
    port, tokens = free_port(), int(tokens)
    context = tokens + MARGIN
    with open(pathlib.Path(os.environ.get("LOG", os.devnull)), "w") as log:
        if kind == "riffle":
            shutil.rmtree(place, ignore_errors=True)
            command = [os.environ["RIFFLE"], "serve", "--model", model, "--alias", "model", "--port", port, "--ctx", context]
            command += ["--threads", "2", "--prefix-cache", place]
        else:
            command = [place, "-c", LLAMA_CPP, model, context, port]
        server = Server(command, port, log)
        begins, seconds, firsts = [], [], []
        words = words_of(server, tokens)
        for number in range(ROUNDS):
            messages = conversation(f"Conversation {number}", words)
            firsts.append(server.turn(messages))
            begins.append(later(messages, firsts[-1][0]))
            seconds.append(server.turn(begins[-1]))
        report(kind, "first turn", firsts)
        report(kind, "second turn", seconds)
        server.stop()
        server = Server(command, port, log)
        restarted = [server.turn(begin) for begin in begins]
        report(kind, "second turn after a restart", restarted)
        server.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
