"""Workers that share blocks through a store, on this machine: see scripts/test/store-test."""

import argparse
import asyncio
import json
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
RIFFLE = ROOT / "target" / "release" / "riffle"
MODEL = ROOT / "fixtures" / "model"
TEXTS = [ROOT / "fixtures" / "text" / "prophets.txt"]
# No request of a test may take longer: then something hangs.
LONGEST_S = 90
KEYS = {"AWS_ACCESS_KEY_ID": "S3RVER", "AWS_SECRET_ACCESS_KEY": "S3RVER"}


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def wait_for(port, what, alive=lambda: True):
    until = time.monotonic() + 30
    while time.monotonic() < until and alive():
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    sys.exit(f"{what} did not start")


class Process:
    def __init__(self, command, port, env=None):
        self.process = subprocess.Popen(
            [str(word) for word in command],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={**os.environ, **(env or {})},
        )
        self.port, self.lines = port, []
        threading.Thread(target=self.read, daemon=True).start()
        wait_for(port, command[0], lambda: self.process.poll() is None)

    def read(self):
        for line in self.process.stderr:
            self.lines.append(line.decode(errors="replace").rstrip())

    def kill(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def end(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(LONGEST_S)
        except subprocess.TimeoutExpired:
            self.kill()
            sys.exit("a process did not end")


class Valkey:
    """A server without a file; it comes back empty."""

    def __init__(self, program, folder):
        self.program, self.folder, self.port = program, folder, free_port()
        self.start()

    def start(self):
        command = [self.program, "--port", self.port, "--bind", "127.0.0.1", "--save", "", "--dir", self.folder]
        command += ["--requirepass", "open-sesame", "--maxmemory", "2gb"]
        self.process = Process(command, self.port)

    def restart(self):
        self.process.kill()
        self.start()

    def empty(self):
        with socket.create_connection(("127.0.0.1", self.port)) as connection:
            connection.sendall(b"AUTH open-sesame\r\nFLUSHALL\r\n")
            replies = b""
            while replies.count(b"\n") < 2:
                replies += connection.recv(100)
            assert replies == b"+OK\r\n+OK\r\n", replies

    def address(self, port):
        return f"valkey://127.0.0.1:{port}?prefix=test"

    env = {"VALKEY_PASSWORD": "open-sesame"}


class Bucket:
    """A folder that comes back as it was when its server was killed."""

    def __init__(self, program, folder):
        self.program, self.folder, self.port = program, folder, free_port()
        self.start()

    def start(self):
        command = [self.program, "--directory", self.folder, "--address", "127.0.0.1", "--port", self.port]
        self.process = Process([*command, "--silent", "--configure-bucket", "blocks"], self.port)

    def restart(self):
        self.process.kill()
        self.start()

    def empty(self):
        shutil.rmtree(pathlib.Path(self.folder) / "blocks" / "test", ignore_errors=True)

    def address(self, port):
        return f"s3://blocks/test?endpoint=http://127.0.0.1:{port}&region=us-east-1"

    env = KEYS


class Proxy:
    """Passes bytes on at a pace; cuts, stops or changes them when it is told to."""

    def __init__(self, target, bytes_per_s):
        self.target, self.bytes_per_s, self.port = target, bytes_per_s, free_port()
        self.is_stalled = False
        self.flips = 0
        self.passed = 0
        # When the line is free again, by direction.
        self.free_at = [0.0, 0.0]
        self.connections = set()
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_until_complete, args=(self.serve(),), daemon=True).start()
        wait_for(self.port, "the proxy")

    async def serve(self):
        server = await asyncio.start_server(self.connect, "127.0.0.1", self.port, limit=1 << 20)
        await server.serve_forever()

    async def connect(self, reader, writer):
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.target(), limit=1 << 20)
        except OSError:
            writer.close()
            return
        writers = {writer, far_writer}
        self.connections |= writers
        both = self.copy(reader, far_writer, 0), self.copy(far_reader, writer, 1)
        await asyncio.gather(*both, return_exceptions=True)
        self.connections -= writers
        for end in writers:
            end.close()

    async def copy(self, reader, writer, direction):
        try:
            while data := await reader.read(1 << 18):
                while self.is_stalled:
                    await asyncio.sleep(0.02)
                now = time.monotonic()
                start = max(now, self.free_at[direction])
                self.free_at[direction] = start + len(data) / self.bytes_per_s
                await asyncio.sleep(max(0, self.free_at[direction] - now))
                if self.flips and len(data) > 1000:
                    self.flips -= 1
                    changed = bytearray(data)
                    changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
                    data = bytes(changed)
                self.passed += len(data)
                writer.write(data)
                await writer.drain()
        finally:
            writer.close()

    def cut(self):
        def abort():
            for writer in list(self.connections):
                writer.transport.abort()

        self.loop.call_soon_threadsafe(abort)


class Worker(Process):
    def __init__(self, place=None, env=None, context=8192, more=()):
        port = free_port()
        command = [RIFFLE, "serve", "--model", MODEL, "--port", port, "--ctx", context, "--quiet", *more]
        if place:
            command += ["--prefix-cache", place]
        super().__init__(command, port, env)

    def open(self, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data)
        request.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(request, timeout=self.longest_s) as answer:
            return answer.read()

    longest_s = LONGEST_S

    def ask(self, prompt, tokens=6):
        body = {"model": "model", "prompt": prompt, "max_tokens": tokens, "temperature": 0, "logprobs": 5}
        answer = json.loads(self.open("/v1/completions", body))
        cached = answer["usage"].get("prompt_tokens_details", {}).get("cached_tokens", 0)
        # Texts and every probability, to the last digit that is written.
        return json.dumps(answer["choices"], sort_keys=True), cached

    def metrics(self):
        values = {}
        for line in self.open("/metrics").decode().splitlines():
            if line and not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                values[name] = float(value)
        return values

    def shared(self, outcome):
        return int(self.metrics().get(f'riffle:shared_blocks_total{{outcome="{outcome}"}}', 0))

    def wait_until_written(self):
        until = time.monotonic() + LONGEST_S
        while time.monotonic() < until:
            metrics = self.metrics()
            known = "riffle:shared_queued_bytes" in metrics
            if known and metrics["riffle:shared_queued_bytes"] == 0:
                return metrics
            time.sleep(0.05)
        sys.exit("blocks are not written: something hangs")


def prompts(count, words):
    text = " ".join(path.read_text() for path in TEXTS).split()
    return [" ".join(text[number * 1700 :][:words]) for number in range(count)]


class Asking(threading.Thread):
    """A request that may be cut off."""

    def __init__(self, worker, prompt):
        super().__init__(daemon=True)
        self.worker, self.prompt, self.answer = worker, prompt, None
        self.start()

    def run(self):
        try:
            self.answer = self.worker.ask(self.prompt)
        except (OSError, urllib.error.URLError, json.JSONDecodeError):
            pass

    def wait(self):
        self.join(LONGEST_S + 10)
        if self.is_alive():
            sys.exit("a request hangs")
        return self.answer


KINDS = ["writer killed", "adopter killed", "store killed", "connections cut", "bits flipped", "line stalled"]


def one_round(store, proxy, prompt, kind, chance):
    """One worker reads and publishes, another adopts; trouble comes in one of both. Returns the adopter's answer."""
    place = store.address(proxy.port)
    in_writer = chance.random() < 0.4 or kind == "writer killed"
    moment = chance.random()

    def trouble(worker):
        if kind.endswith("killed") and kind != "store killed":
            worker.kill()
        elif kind == "store killed":
            store.restart()
        elif kind == "connections cut":
            proxy.cut()
        elif kind == "bits flipped":
            proxy.flips = chance.randrange(1, 4)
        else:
            proxy.is_stalled = True

    writer = Worker(place, store.env)
    asking = Asking(writer, prompt)
    if in_writer and kind != "adopter killed":
        time.sleep(moment * 1.2)
        trouble(writer)
        asking.wait()
    else:
        if asking.wait() is None:
            sys.exit(f"{kind}: no answer though nothing had happened")
        writer.wait_until_written()
    seen = [asking.answer]
    writer.kill()
    if in_writer:
        proxy.is_stalled, proxy.flips = False, 0

    adopter = Worker(place, store.env)
    asking = Asking(adopter, prompt)
    if not in_writer or kind == "adopter killed":
        time.sleep(moment * 0.4)
        trouble(adopter)
        if kind == "adopter killed":
            asking.wait()
            adopter = Worker(place, store.env)
            asking = Asking(adopter, prompt)
    answer = asking.wait()
    if answer is None:
        sys.exit(f"{kind}: the adopter gave no answer:\n" + "\n".join(adopter.lines))
    seen.append(answer)
    metrics = adopter.metrics()
    adopter.kill()
    proxy.is_stalled, proxy.flips = False, 0
    bad = int(metrics.get('riffle:shared_blocks_total{outcome="bad"}', 0))
    failures = int(metrics.get("riffle:shared_failures_total", 0))
    return [answer for answer in seen if answer], bad, failures


def faults(stores, rounds, seed):
    asked = prompts(6, 1600)
    alone = Worker()
    expected = [alone.ask(prompt)[0] for prompt in asked]
    alone.end()
    chance, total, began = random.Random(seed), {}, time.monotonic()
    wrong = 0
    for number in range(rounds):
        if number % 20 == 0:
            print(f"{number} rounds, {wrong} wrong answers, {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
        # Four of five rounds on the first store.
        name, store = list(stores.items())[1 if len(stores) > 1 and number % 5 == 4 else 0]
        proxy = Proxy(lambda store=store: store.port, 32e6)
        kind, which = KINDS[number % len(KINDS)], chance.randrange(len(asked))
        store.empty()
        answers, bad, failures = one_round(store, proxy, asked[which], kind, chance)
        counts = total.setdefault((name, kind), [0, 0, 0, 0, 0])
        counts[0] += 1
        counts[1] += answers[-1][1] > 0
        counts[2] += bad
        counts[3] += failures
        for answer, _ in answers:
            if answer != expected[which]:
                wrong += 1
                counts[4] += 1
                print(f"round {number} ({kind}): a wrong answer", file=sys.stderr)
    print(f"{rounds} rounds in {time.monotonic() - began:.0f} s")
    print(f"{'store':8} {'what happened':16} {'rounds':>6} {'adopted':>7} {'bad blocks':>10} {'failures':>8} {'wrong answers':>13}")
    for (name, kind), (count, adopted, bad, failures, bad_answers) in sorted(total.items()):
        print(f"{name:8} {kind:16} {count:6} {adopted:7} {bad:10} {failures:8} {bad_answers:13}")
    print(f"{rounds} passed, 0 failed" if wrong == 0 else f"{wrong} wrong answers")
    return wrong


def measure(stores, tokens, bytes_per_s):
    text = " ".join(path.read_text() for path in TEXTS)
    # A document of the asked length, whatever a word has of tokens.
    words = text.split()
    words = (words * 8)[: int(tokens * 0.62)]
    question = " What does the text say?"
    document = " ".join(words)
    for name, store in stores.items():
        store.empty()
        proxy = Proxy(lambda store=store: store.port, bytes_per_s)
        place = store.address(proxy.port)
        reader = Worker(place, store.env, 131072)
        reader.longest_s = 3600
        began = time.monotonic()
        answer, cached = reader.ask(document + question)
        read_s = time.monotonic() - began
        written = reader.wait_until_written()
        written_s = time.monotonic() - began - read_s
        prompt_tokens = int(written["vllm:prompt_tokens_total"])
        reader.end()
        passed = proxy.passed
        adopter = Worker(place, store.env, 131072)
        adopter.longest_s = 3600
        began = time.monotonic()
        same, adopted = adopter.ask(document + question)
        adopted_s = time.monotonic() - began
        metrics = adopter.metrics()
        adopter.end()
        print(
            json.dumps(
                {
                    "store": name,
                    "prompt_tokens": prompt_tokens,
                    "read_s": round(read_s, 2),
                    "written_behind_s": round(written_s, 2),
                    "adopted_tokens": adopted,
                    "adopted_s": round(adopted_s, 2),
                    "share_of_reading": round(adopted_s / read_s, 4),
                    "fetched_bytes": int(metrics['riffle:shared_bytes_total{outcome="fetched"}']),
                    "passed_bytes": proxy.passed - passed,
                    "bytes_per_s": bytes_per_s,
                    "same_answer_and_probabilities": same == answer,
                    "bad_blocks": int(metrics['riffle:shared_blocks_total{outcome="bad"}']),
                }
            )
        )
        if same != answer or cached:
            return 1
    return 0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--valkey", required=True)
    parser.add_argument("--s3", default="")
    parser.add_argument("what", nargs="?", default="200")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=100_000)
    parser.add_argument("--bytes-per-s", type=float, default=125e6)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        places = [pathlib.Path(folder) / name for name in ("valkey", "s3")]
        for place in places:
            place.mkdir()
        stores = {"valkey": Valkey(arguments.valkey, places[0])}
        if arguments.s3:
            stores["s3"] = Bucket(arguments.s3, places[1])
        try:
            if arguments.what == "measure":
                return measure(stores, arguments.tokens, arguments.bytes_per_s)
            return 1 if faults(stores, int(arguments.what), arguments.seed) else 0
        finally:
            for store in stores.values():
                store.process.kill()


if __name__ == "__main__":
    sys.exit(main())
