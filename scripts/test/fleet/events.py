"""KV events of a server against vLLM's structures: what they tell is what requests go on from, and what was missed comes again.

A subscriber like vLLM's example decodes events with msgspec, into the structures of vllm/distributed/kv_events.py. With --example FILE
vLLM's own examples/features/kv_events/kv_events_subscriber.py runs beside it, and what it prints is counted.
"""

import argparse
import pathlib
import re
import subprocess
import sys
import tempfile
import time
from typing import Any

import msgspec
import zmq

import workers

PARSER = argparse.ArgumentParser(description=__doc__)
workers.add_options(PARSER, workers=1)
PARSER.add_argument("--example", type=pathlib.Path)
ARGUMENTS = PARSER.parse_args()
HTTP = ARGUMENTS.port
# The example's own, which it cannot be told.
EVENTS, REPLAYS = (5557, 5558) if ARGUMENTS.example else (ARGUMENTS.port + 1, ARGUMENTS.port + 2)
TOPIC = "kv-events"
PAGE = 64


def structures(array_like):
    class Event(msgspec.Struct, array_like=array_like, omit_defaults=True, tag=True):
        pass

    class BlockStored(Event):
        block_hashes: list[int]
        parent_block_hash: int | None
        token_ids: list[int]
        block_size: int
        lora_id: int | None
        medium: str | None
        lora_name: str | None
        extra_keys: list[Any] | None = None
        group_idx: int | None = None
        kv_cache_spec_kind: str | None = None
        kv_cache_spec_sliding_window: int | None = None

    class BlockRemoved(Event):
        block_hashes: list[int]
        medium: str | None
        group_idx: int | None = None

    class AllBlocksCleared(Event):
        pass

    class Batch(msgspec.Struct, array_like=True, omit_defaults=True):
        ts: float
        events: list[BlockStored | BlockRemoved | AllBlocksCleared]
        data_parallel_rank: int | None = None

    return msgspec.msgpack.Decoder(Batch)


class Subscriber:
    """State of a router: hashes by (parent, tokens), and the holders of each."""

    def __init__(self, array_like):
        self.decoder = structures(array_like)
        context = zmq.Context.instance()
        self.socket = context.socket(zmq.SUB)
        self.socket.connect(f"tcp://127.0.0.1:{EVENTS}")
        self.socket.setsockopt_string(zmq.SUBSCRIBE, TOPIC)
        self.replays = context.socket(zmq.DEALER)
        self.replays.connect(f"tcp://127.0.0.1:{REPLAYS}")
        self.last, self.held, self.hashes, self.deaf = -1, {}, {}, False

    def apply(self, payload):
        for event in self.decoder.decode(payload).events:
            match type(event).__name__:
                case "AllBlocksCleared":
                    self.held.clear()
                case "BlockStored":
                    parent = event.parent_block_hash
                    assert len(event.token_ids) == event.block_size * len(event.block_hashes)
                    for at, block in enumerate(event.block_hashes):
                        tokens = tuple(event.token_ids[at * event.block_size : (at + 1) * event.block_size])
                        self.hashes[parent, tokens] = block
                        self.held.setdefault(block, set()).add(event.medium)
                        parent = block
                case "BlockRemoved":
                    for block in event.block_hashes:
                        self.held[block].discard(event.medium)
                        if not self.held[block]:
                            del self.held[block]

    def replay(self, first):
        """Asks for batches from a number on; returns how many came."""
        self.replays.send_multipart([b"", first.to_bytes(8, "big")])
        count = 0
        while True:
            assert self.replays.poll(5000), "no answer to a replay"
            _, number, payload = self.replays.recv_multipart()
            if number == b"\xff" * 8:
                return count
            number = int.from_bytes(number, "big")
            if number > self.last:
                self.apply(payload)
                self.last, count = number, count + 1

    def listen(self, ms=400):
        """Takes in what comes until nothing does for a while; returns how many batches had been missed."""
        missed = 0
        while self.socket.poll(ms):
            topic, number, payload = self.socket.recv_multipart()
            assert topic.decode() == TOPIC
            number = int.from_bytes(number, "big")
            if self.deaf:
                continue
            if number > self.last + 1:
                missed += self.replay(self.last + 1)
            if number > self.last:
                self.apply(payload)
                self.last = number
        return missed

    def expected(self, tokens):
        """Tokens that a prompt goes on from, in whole blocks."""
        parent, count = None, 0
        while (count + 1) * PAGE < len(tokens):
            block = self.hashes.get((parent, tuple(tokens[count * PAGE : (count + 1) * PAGE])))
            if block not in self.held:
                break
            parent, count = block, count + 1
        return count * PAGE


def prompts():
    words = (workers.ROOT / "fixtures/text/prophets.txt").read_text().split()
    for document in [0, 1, 0, 2, 1, 0, 3, 4, 0, 5, 6, 2]:
        text = " ".join(words[document * 500 : document * 500 + 250])
        for question in range(3):
            yield f"{text} Question {question} of {document}: " + " ".join(words[question * 40 : question * 40 + 60])


def ask(prompt):
    status, answer = workers.post(HTTP, "/v1/completions", {"prompt": prompt, "max_tokens": 4, "temperature": 0})
    assert status == 200, answer
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def check(encoding):
    with tempfile.TemporaryDirectory() as folder, workers.Programs() as programs:
        extra = ["--page-tokens", PAGE, "--prefix-cache", pathlib.Path(folder) / "prefixes", "--kv-events", f"tcp://127.0.0.1:{EVENTS}"]
        extra += ["--kv-events-replay", f"tcp://127.0.0.1:{REPLAYS}", "--kv-events-topic", TOPIC, "--kv-events-encoding", encoding]
        ARGUMENTS.pool_tokens = 4096
        server = workers.worker(programs, folder, 0, ARGUMENTS, HTTP, extra)
        workers.wait_for(server, HTTP)
        subscriber = Subscriber(encoding == "array")
        subscriber.replay(0)
        example = None
        if ARGUMENTS.example:
            program = "import sys, types; m = types.ModuleType('k'); m.ExternalBlockHash = bytes | int\n"
            program += "for n in ('vllm', 'vllm.v1', 'vllm.v1.core', 'vllm.v1.core.kv_cache_utils'): sys.modules[n] = m\n"
            program += f"sys.argv = ['x']; exec(compile(open({str(ARGUMENTS.example)!r}).read(), 'example', 'exec'))"
            example = subprocess.Popen([sys.executable, "-u", "-c", program], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            time.sleep(1)
        right, reused, replayed = 0, 0, 0
        for number, prompt in enumerate(prompts()):
            # The subscriber hears nothing of every third request, and has to ask.
            subscriber.listen()
            status, tokens = workers.post(HTTP, "/tokenize", {"content": prompt, "add_special": True})
            expected = subscriber.expected(tokens["tokens"])
            cached = ask(prompt)
            assert cached // PAGE * PAGE == expected, f"request {number}: {cached} tokens found, {expected} told"
            right, reused = right + 1, reused + cached
            subscriber.deaf = number % 3 == 1
            replayed += subscriber.listen()
            subscriber.deaf = False
            if number % 3 == 1:
                replayed += subscriber.replay(subscriber.last + 1)
        media = sorted({medium for places in subscriber.held.values() for medium in places})
        print(f"{encoding}: {right} requests found what was told, {reused} tokens; {replayed} batches came by replay; held in {media}")
        assert replayed > 0 and reused > 0 and media == ["DISK", "GPU"]
        server.kill()
        server.start()
        workers.wait_for(server, HTTP)
        later = Subscriber(encoding == "array")
        time.sleep(1)
        later.replay(0)
        on_disk = {block for block, places in subscriber.held.items() if "DISK" in places}
        assert set(later.held) == on_disk and all(places == {"DISK"} for places in later.held.values())
        print(f"{encoding}: after kill -9 and a new start {len(on_disk)} blocks are told, those on disk")
        if example:
            example.terminate()
            text = example.communicate(timeout=10)[0]
            events = len(re.findall(r"  - (BlockStored|BlockRemoved|AllBlocksCleared)\(", text))
            assert events > 0 and "Error" not in text, text[-2000:]
            print(f"{encoding}: vLLM's example printed {events} events")


for ENCODING in ["map", "array"]:
    if not (ARGUMENTS.example and ENCODING == "array"):
        check(ENCODING)
