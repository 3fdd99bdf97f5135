"""A `riffle serve` as a native worker of NVIDIA Dynamo.

    pip install ai-dynamo==1.6.1
    riffle serve --model DIR --port 8081 --page-tokens 64 --kv-events tcp://127.0.0.1:5557
    python deploy/dynamo/riffle_worker.py --riffle http://127.0.0.1:8081 --kv-events tcp://127.0.0.1:5557 --model-path DIR
    python -m dynamo.frontend --router-mode kv

Dynamo's frontend tokenizes with the model's tokenizer.json, its router chooses a worker by KV events and load, and this program hands the tokens to the
server beside it. What the server does not do is refused by name. Without etcd and NATS: --discovery-backend file --event-plane zmq for both, and
DYN_FILE_KV=FOLDER in the environment.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from collections.abc import AsyncGenerator
from typing import Any

import aiohttp
from dynamo.common.backend.engine import EngineConfig, LLMEngine, LlmRegistration
from dynamo.common.backend.publisher import ComponentSnapshot, ZmqSource
from dynamo.common.backend.run import run
from dynamo.common.backend.worker import WorkerConfig

# What Dynamo's sampling options are called at the server.
SAMPLING = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "seed": "seed",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "repetition_penalty": "repetition_penalty",
}
STOPS = {"max_tokens": "max_tokens", "min_tokens": "min_tokens", "ignore_eos": "ignore_eos"}


class RiffleEngine(LLMEngine):
    """Hands requests to a server and tells Dynamo what it holds."""

    def __init__(self, arguments: argparse.Namespace):
        self.arguments = arguments
        self.session: aiohttp.ClientSession | None = None
        self.publisher: Any = None
        self.watch: asyncio.Task | None = None
        self.blocks = 0

    @classmethod
    async def from_args(cls, argv: list[str] | None = None) -> tuple[RiffleEngine, WorkerConfig]:
        parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
        parser.add_argument("--riffle", default="http://127.0.0.1:8080", help="address of the server")
        parser.add_argument("--api-key", default=os.environ.get("RIFFLE_API_KEY"), help="key of the server")
        parser.add_argument("--kv-events", help="where the server publishes KV events; without it the router knows only load")
        parser.add_argument("--model-path", required=True, help="folder with tokenizer.json and config.json")
        parser.add_argument("--served-model-name", help="name that clients see [default: that of the server]")
        parser.add_argument("--endpoint-types", default="chat,completions", help="completions alone for a model without a chat template")
        parser.add_argument("--namespace", default="dynamo")
        parser.add_argument("--component", default="backend")
        parser.add_argument("--endpoint", default="generate")
        parser.add_argument("--discovery-backend", default=os.environ.get("DYN_DISCOVERY_BACKEND", "etcd"))
        parser.add_argument("--request-plane", default=os.environ.get("DYN_REQUEST_PLANE", "tcp"))
        parser.add_argument("--event-plane", default=os.environ.get("DYN_EVENT_PLANE"))
        arguments = parser.parse_args(argv)
        config = WorkerConfig(
            namespace=arguments.namespace,
            component=arguments.component,
            endpoint=arguments.endpoint,
            model_name=arguments.model_path,
            served_model_name=arguments.served_model_name,
            endpoint_types=arguments.endpoint_types,
            discovery_backend=arguments.discovery_backend,
            request_plane=arguments.request_plane,
            event_plane=arguments.event_plane,
            use_kv_events=arguments.kv_events is not None,
        )
        return cls(arguments), config

    async def start(self, worker_id: int) -> EngineConfig:
        del worker_id
        headers = {"Authorization": f"Bearer {self.arguments.api_key}"} if self.arguments.api_key else {}
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10)
        self.session = aiohttp.ClientSession(self.arguments.riffle, headers=headers, timeout=timeout)
        async with self.session.get("/v1/models") as response:
            response.raise_for_status()
            model = (await response.json())["data"][0]
        metrics = await self.metrics()
        config = next((labels for name, labels, _ in metrics if name == "vllm:cache_config_info"), {})
        self.blocks = int(config.get("num_gpu_blocks", 0))
        name = self.arguments.served_model_name or model["id"]
        self.watch = asyncio.create_task(self.publish_load())
        return EngineConfig(
            model=name,
            served_model_name=name,
            llm=LlmRegistration(
                context_length=model["max_model_len"],
                kv_cache_block_size=model["riffle"]["page_tokens"],
                total_kv_blocks=self.blocks,
            ),
        )

    async def metrics(self) -> list[tuple[str, dict[str, str], float]]:
        """Name, labels and value of each metric of the server."""
        async with self.session.get("/metrics") as response:
            lines = (await response.text()).splitlines()
        found = []
        for line in lines:
            if line and not line.startswith("#"):
                key, value = line.rsplit(" ", 1)
                name, _, labels = key.partition("{")
                pairs = (label.split("=", 1) for label in labels.rstrip("}").split(",") if label)
                found.append((name, {label: text.strip('"') for label, text in pairs}, float(value)))
        return found

    async def kv_event_sources(self) -> list[ZmqSource]:
        return [ZmqSource(self.arguments.kv_events)] if self.arguments.kv_events else []

    def component_metrics_dp_ranks(self) -> list[int]:
        return [0]

    def attach_snapshot_publisher(self, publisher: Any) -> None:
        self.publisher = publisher

    async def publish_load(self) -> None:
        """Tells the router once a second how much of the cache is in use."""
        while True:
            await asyncio.sleep(1)
            try:
                usage = sum(value for name, _, value in await self.metrics() if name == "vllm:kv_cache_usage_perc")
            except aiohttp.ClientError:
                continue
            if self.publisher is not None:
                used = int(usage * self.blocks)
                self.publisher.publish(
                    0,
                    ComponentSnapshot(
                        kv_used_blocks=used, kv_total_blocks=self.blocks, gpu_cache_usage=usage, kv_cache_hit_rate=None, dp_rank=0
                    ),
                )

    def body(self, request: dict[str, Any]) -> dict[str, Any]:
        """The request in the server's words."""
        sampling, stop, output = (request.get(part) or {} for part in ("sampling_options", "stop_conditions", "output_options"))
        refused = [
            (sampling.get("guided_decoding"), "guided decoding"),
            (output.get("logprobs") is not None or output.get("prompt_logprobs") is not None, "log probabilities"),
            (request.get("multi_modal_data") or request.get("prompt_embeds"), "prompts that are no tokens"),
            ((sampling.get("n") or 1) > 1, "several answers to a prompt"),
        ]
        for is_asked, what in refused:
            if is_asked:
                raise ValueError(f"{what}: this worker does not do that, ask a riffle serve directly")
        body = {"prompt": list(request["token_ids"]), "stream": True, "return_token_ids": True, "max_tokens": 4096}
        for options, names in ((sampling, SAMPLING), (stop, STOPS)):
            body |= {names[key]: value for key, value in options.items() if key in names and value is not None}
        if (body.get("top_k") or 0) < 0:
            del body["top_k"]
        tokens = [token for key in ("stop_token_ids", "stop_token_ids_visible", "stop_token_ids_hidden") for token in stop.get(key) or []]
        return body | ({"stop_token_ids": sorted(set(tokens))} if tokens else {})

    async def generate(self, request: dict[str, Any], context: Any) -> AsyncGenerator[dict[str, Any], None]:
        prompt_tokens, written = len(request["token_ids"]), 0

        def usage(cached: int = 0) -> dict[str, Any]:
            return {
                "prompt_tokens": prompt_tokens,
                "completion_tokens": written,
                "total_tokens": prompt_tokens + written,
                "prompt_tokens_details": {"cached_tokens": cached},
            }

        body = self.body(request) | {"stream_options": {"include_usage": True}}
        async with self.session.post("/v1/completions", json=body) as response:
            if response.status != 200:
                raise ValueError(f"the server refuses the request: {(await response.text())[:500]}")
            reason, cached = None, 0
            async for line in response.content:
                # Leaving closes the connection, and the server takes the request back.
                if context.is_stopped():
                    yield {"token_ids": [], "index": 0, "finish_reason": "cancelled", "completion_usage": usage()}
                    return
                if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
                    continue
                event = json.loads(line[6:])
                if "error" in event:
                    raise RuntimeError(event["error"]["message"])
                details = (event.get("usage") or {}).get("prompt_tokens_details") or {}
                cached = details.get("cached_tokens", cached)
                for choice in event["choices"]:
                    reason = choice["finish_reason"] or reason
                    if choice.get("token_ids"):
                        written += len(choice["token_ids"])
                        yield {"token_ids": choice["token_ids"], "index": 0}
        if reason is None:
            raise RuntimeError("the server ended before the answer did")
        yield {"token_ids": [], "index": 0, "finish_reason": reason, "completion_usage": usage(cached)}

    async def cleanup(self) -> None:
        if self.watch is not None:
            self.watch.cancel()
            self.watch = None
        if self.session is not None:
            await self.session.close()
            self.session = None


if __name__ == "__main__":
    run(RiffleEngine)
