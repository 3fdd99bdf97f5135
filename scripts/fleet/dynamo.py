"""Workers behind Dynamo's frontend: its router is led by KV events, or takes turns.

Each worker is a `riffle serve` with deploy/dynamo/riffle_worker.py beside it. All answers are compared with those of one server that is asked directly.
Neither etcd nor NATS is needed: workers and frontend find each other in a folder. scripts/fleet-test runs this in a network of its own, since workers of Dynamo listen on every
address. Prints one JSON object; exits with 1 where an answer is wrong.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import time

import workers
from conversations import Run, add_options, streamed, whole

PARSER = argparse.ArgumentParser(description=__doc__)
workers.add_options(PARSER, workers=2)
add_options(PARSER)
ARGUMENTS = PARSER.parse_args()
FRONTEND = ARGUMENTS.port


def expected():
    with tempfile.TemporaryDirectory() as folder, workers.Programs() as programs:
        port = ARGUMENTS.port + 1
        workers.wait_for(workers.worker(programs, folder, "alone", ARGUMENTS, port), port)
        return Run(ARGUMENTS, without_begin_token(port)).all().answers


def without_begin_token(port):
    """Asks with the tokens that Dynamo's frontend sends: it puts no token for the beginning of a text before the prompt of a completion."""
    ask = whole(port)

    def ask_tokens(body):
        status, answer = workers.post(port, "/tokenize", {"content": body["prompt"], "add_special": False})
        if status != 200:
            return status, None, answer, {}
        return ask(body | {"prompt": answer["tokens"]})

    return ask_tokens


def by_router(mode, right):
    with tempfile.TemporaryDirectory() as folder, workers.Programs() as programs:
        environment = {
            "DYN_DISCOVERY_BACKEND": "file",
            "DYN_FILE_KV": str(pathlib.Path(folder) / "discovery"),
            "DYN_REQUEST_PLANE": "tcp",
            "DYN_EVENT_PLANE": "zmq",
            "DYN_TCP_RPC_HOST": workers.HOST,
            "DYN_EVENT_PLANE_HOST": workers.HOST,
            "DYN_LOG": "info",
            "HF_HUB_OFFLINE": "1",
        }
        ports = [ARGUMENTS.port + 1 + number for number in range(ARGUMENTS.workers)]
        for number, port in enumerate(ports):
            events = f"tcp://127.0.0.1:{ARGUMENTS.port + 10 + number}"
            server = workers.worker(programs, folder, number, ARGUMENTS, port, ["--page-tokens", 64, "--kv-events", events])
            workers.wait_for(server, port)
            command = [sys.executable, workers.ROOT / "deploy/dynamo/riffle_worker.py", "--riffle", f"http://127.0.0.1:{port}"]
            command += ["--kv-events", events, "--model-path", ARGUMENTS.model, "--served-model-name", "model"]
            command += ["--endpoint-types", "completions"]
            programs.add(f"dynamo-worker-{number}", command, folder, environment)
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
        requests = [workers.metric(port, "vllm:request_success_total") for port in ports]
        return {**run.summary(), "requests_by_worker": requests, "wrong": sum(run.answers.get(key) != text for key, text in right.items())}


# A network of its own begins without a loopback.
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
RIGHT = expected()
RESULT = {mode: by_router(mode, RIGHT) for mode in ["round-robin", "kv"]}
print(json.dumps(RESULT, indent=1))
if any(run["wrong"] for run in RESULT.values()):
    sys.exit("an answer was wrong")
