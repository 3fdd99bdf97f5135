"""Native workers behind Dynamo's frontend: its router is led by KV events, or takes turns.

All answers are compared with those of one `riffle serve`. Neither etcd nor NATS is needed: workers and frontend find each other in a folder.
Needs crates/dynamo built (cargo build --release there). Prints one JSON object; exits with 1 where an answer is wrong, with 75 without the worker.
"""

import argparse
import json
import pathlib
import sys
import tempfile
import time

import workers
from conversations import Run, add_options, streamed, whole

PARSER = argparse.ArgumentParser(description=__doc__)
workers.add_options(PARSER, workers=2)
add_options(PARSER)
PARSER.add_argument("--worker", default=str(workers.ROOT / "crates/dynamo/target/release/riffle-dynamo"))
ARGUMENTS = PARSER.parse_args()
FRONTEND = ARGUMENTS.port


def expected():
    with tempfile.TemporaryDirectory() as folder, workers.Programs() as programs:
        port = ARGUMENTS.port + 1
        workers.wait_for(workers.worker(programs, folder, "alone", ARGUMENTS, port), port)
        return Run(ARGUMENTS, whole(port)).all().answers


def by_router(mode, right):
    with tempfile.TemporaryDirectory() as folder, workers.Programs() as programs:
        environment = {
            "DYN_DISCOVERY_BACKEND": "file",
            "DYN_FILE_KV": str(pathlib.Path(folder) / "discovery"),
            "DYN_REQUEST_PLANE": "tcp",
            "DYN_EVENT_PLANE": "zmq",
            "DYN_TCP_RPC_HOST": workers.HOST,
            "DYN_HTTP_RPC_HOST": workers.HOST,
            "DYN_LOG": "info",
            "HF_HUB_OFFLINE": "1",
        }
        for number in range(ARGUMENTS.workers):
            command = [ARGUMENTS.worker, "--model-path", ARGUMENTS.model, "--served-model-name", "model", "--ctx", ARGUMENTS.context]
            command += ["--pool-tokens", ARGUMENTS.pool_tokens, "--threads", ARGUMENTS.threads, "--page-tokens", 64]
            command += ["--kv-events", f"tcp://127.0.0.1:{ARGUMENTS.port + 10 + number}"]
            programs.add(f"worker-{number}", command, folder, environment)
        command = [sys.executable, "-m", "dynamo.frontend", "--http-host", workers.HOST, "--http-port", FRONTEND, "--router-mode", mode]
        frontend = programs.add(f"frontend-{mode}", command, folder, environment)
        has_model = lambda status, data: status == 200 and json.loads(data)["data"]
        try:
            workers.wait_for(frontend, FRONTEND, "/v1/models", ready=has_model)
            time.sleep(5)
            run = Run(ARGUMENTS, streamed(FRONTEND)).all()
        except SystemExit:
            for program in programs:
                print(f"== {program.name}\n{program.log.read_text(errors='replace')[-3000:]}", file=sys.stderr)
            raise
        return {**run.summary(), "wrong": sum(run.answers.get(key) != text for key, text in right.items())}


if not pathlib.Path(ARGUMENTS.worker).exists():
    print(f"{ARGUMENTS.worker} is not there: cargo build --release in crates/dynamo")
    sys.exit(75)
RIGHT = expected()
RESULT = {mode: by_router(mode, RIGHT) for mode in ["round-robin", "kv"]}
print(json.dumps(RESULT, indent=1))
if any(run["wrong"] for run in RESULT.values()):
    sys.exit("an answer was wrong")
