"""Riffle's attention beside `sdpa` in a Llama-shaped model of transformers: decoding at a depth, and reading a prompt.

    python crates/python/benches/transformers_attention.py [--model FOLDER] [--depth 32768] [--prompt 16384] [--out FILE]

Without a model it is a random one of SmolLM2-135M's shape (30 layers, 9 query heads on 3 KV heads of 64): what is measured
depends on shapes alone, except under policies, which choose by keys. Both run in this process, one after the other, with the same
number of threads. Memory of a cache is what it holds; memory of the process is the largest while it decodes.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import threading
import time
from pathlib import Path

import torch
import transformers

import riffle.transformers

SMOLLM2 = {
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 64,
    "max_position_embeddings": 262144,
    "tie_word_embeddings": True,
    "rope_theta": 100000,
}


class Memory:
    """The largest memory of the process while it is watched, above what it was before."""

    def __enter__(self) -> Memory:
        self.before = self.now()
        self.largest = self.before
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.watch)
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.thread.join()

    def watch(self) -> None:
        while not self.over.wait(0.005):
            self.largest = max(self.largest, self.now())

    @staticmethod
    def now() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    @property
    def grown(self) -> int:
        return self.largest - self.before


def random_cache(model, depth: int):
    """A cache of transformers that holds `depth` random tokens: sdpa's time does not depend on what they are."""
    cache = transformers.DynamicCache(config=model.config)
    shape = (1, model.config.num_key_value_heads, depth, model.config.head_dim)
    for layer in range(model.config.num_hidden_layers):
        cache.update(torch.randn(shape), torch.randn(shape), layer)
    return cache


def random_pages(model, depth: int, **options):
    """The same in Riffle's pages."""
    cache = riffle.transformers.Cache(model, **options)
    config = model.config
    pages = cache.pages(config.num_attention_heads, config.num_key_value_heads, config.head_dim)
    for layer in range(config.num_hidden_layers):
        held = cache.layers[layer]
        for begin in range(0, depth, 512):
            count = min(512, depth - begin)
            keys = torch.randn(config.num_key_value_heads, count, config.head_dim)
            pages.append(keys, torch.randn_like(keys), layer=layer)
        held.tokens, held.is_initialized = depth, True
    return cache


def decode(model, cache, depth: int, steps: int) -> dict[str, float]:
    """Tokens a second at a depth, the fastest half of the steps."""
    token = torch.tensor([[5]])
    times = []
    with Memory() as memory:
        for step in range(steps):
            began = time.perf_counter()
            model(token, cache=cache, position_ids=torch.tensor([[depth + step]]))
            times.append(time.perf_counter() - began)
    times = sorted(times)[: max(1, steps // 2)]
    return {"tokens_per_s": len(times) / sum(times), "peak_bytes": memory.grown}


def prefill(model, cache, tokens: torch.Tensor) -> float:
    began = time.perf_counter()
    model(tokens, cache=cache, logits_to_keep=1)
    return tokens.shape[1] / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model")
    parser.add_argument("--text")
    parser.add_argument("--depth", type=int, default=32768)
    parser.add_argument("--prompt", type=int, default=16384)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--out")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    riffle.set_threads(arguments.threads)
    torch.manual_seed(1)
    if arguments.model:
        path = Path(arguments.model)
        source = {"gguf_file": path.name} if path.is_file() else {}
        folder = path.parent if path.is_file() else path
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **source)
    else:
        model = transformers.AutoModelForCausalLM.from_config(transformers.LlamaConfig(**SMOLLM2), dtype=torch.float32)
    model = model.eval()
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    if arguments.text:
        engine = riffle.Engine(arguments.model, context=arguments.prompt)
        tokens = torch.tensor([engine.encode(Path(arguments.text).read_text())[: arguments.prompt]])
        engine.close()
    else:
        tokens = torch.randint(5, 2000, (1, arguments.prompt))
    rows = []

    def note(what: str, how: str, **found: float) -> None:
        rows.append({"what": what, "how": how, **found})
        print(json.dumps(rows[-1]), flush=True)

    depth = arguments.depth
    model.set_attn_implementation("sdpa")
    cache = random_cache(model, depth)
    held = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
    note("decode", "sdpa, DynamicCache", cache_bytes=held, **decode(model, cache, depth, arguments.steps))
    del cache
    model.set_attn_implementation("riffle")
    for kv_type, policy in (("f32", "full"), ("f16", "full"), ("q8_0", "full"), ("q8_0", "quest")):
        cache = random_pages(model, depth, kv_type=kv_type, decode=policy)
        held = cache.usage["ram_bytes"]
        note("decode", f"riffle, {kv_type}, {policy}", cache_bytes=held, **decode(model, cache, depth, arguments.steps))
        cache.close()
    model.set_attn_implementation("sdpa")
    note("prefill", "sdpa, DynamicCache", tokens_per_s=prefill(model, transformers.DynamicCache(config=model.config), tokens))
    model.set_attn_implementation("riffle")
    # The last reads next to nothing: what remains are the layers of torch.
    for policy in ("full", "xattention", "streaming"):
        cache = riffle.transformers.Cache(model, kv_type="f16", prefill=policy)
        speed = prefill(model, cache, tokens)
        note("prefill", f"riffle, f16, {policy}", tokens_per_s=speed, density=cache.usage["density"])
        cache.close()
    if arguments.out:
        about = {
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "threads": arguments.threads,
            "machine": platform.machine(),
            "depth": depth,
            "prompt": tokens.shape[1],
        }
        Path(arguments.out).write_text(json.dumps({"about": about, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    with torch.no_grad():
        main()
