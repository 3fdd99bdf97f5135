"""Workers behind Dynamo's frontend: its router is led by KV events, or takes turns.

Each worker is a `riffle-dynamo`. All answers are compared with those of one `riffle serve` that is asked directly. Neither etcd nor NATS is needed: workers and frontend find
each other in a folder. scripts/test/fleet-test runs this in a network of its own, since workers of Dynamo listen on every address. After each run a client leaves in the
middle of an answer, and the workers are told to end. Then a worker is killed in mid-run and started again. At last a worker is started on the disk of another, and has to get the
requests whose prompts lie there. Prints one JSON object; exits with 1 where something is wrong.
"""

import argparse
import contextlib
import http.client
import json
import pathlib
import subprocess
import sys
import tempfile
import time

import workers
from conversations import WORDS, Run, add_options, streamed, whole, with_a_kill

PARSER = argparse.ArgumentParser(description=__doc__)
workers.add_options(PARSER, workers=2)
add_options(PARSER)
PARSER.add_argument("--riffle-dynamo", required=True)
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


class Fleet:
    """Workers and a frontend that find each other in a folder."""

    def __init__(self, folder, programs, mode):
        self.folder, self.programs, self.mode, self.workers, self.ports = folder, programs, mode, [], []
        self.environment = {
            "DYN_DISCOVERY_BACKEND": "file",
            "DYN_FILE_KV": str(pathlib.Path(folder) / "discovery"),
            "DYN_REQUEST_PLANE": "tcp",
            "DYN_EVENT_PLANE": "zmq",
            "DYN_TCP_RPC_HOST": workers.HOST,
            "DYN_EVENT_PLANE_HOST": workers.HOST,
            "DYN_LOG": "info",
            "HF_HUB_OFFLINE": "1",
        }

    def add_worker(self, extra=()):
        # Port of its health check and its metrics.
        port = ARGUMENTS.port + 1 + len(self.ports)
        command = [ARGUMENTS.riffle_dynamo, "--model", ARGUMENTS.model, "--alias", "model", "--endpoint-types", "completions"]
        command += ["--page-tokens", 64, *workers.sizes(ARGUMENTS), *extra]
        own = {"DYN_SYSTEM_HOST": workers.HOST, "DYN_SYSTEM_PORT": str(port)}
        program = self.programs.add(f"worker-{len(self.ports)}", command, self.folder, self.environment | own)
        self.workers.append(program)
        self.ports.append(port)
        workers.wait_for(program, port)

    def add_frontend(self, extra=()):
        command = [sys.executable, "-m", "dynamo.frontend", "--http-host", workers.HOST, "--http-port", FRONTEND, "--router-mode", self.mode, *extra]
        frontend = self.programs.add(f"frontend-{self.mode}", command, self.folder, self.environment)
        has_model = lambda status, data: status == 200 and json.loads(data)["data"]
        workers.wait_for(frontend, FRONTEND, "/v1/models", ready=has_model)
        # Until its router has heard of all workers, and of what they hold.
        time.sleep(5)

    def requests(self, label=""):
        return [workers.metric(port, "vllm:request_success_total", label) for port in self.ports]

    def end(self):
        """Tells the workers to end; their exit statuses."""
        for program in self.workers:
            program.end()
        return [program.process.returncode for program in self.workers]


@contextlib.contextmanager
def fleet(mode):
    with tempfile.TemporaryDirectory() as folder, workers.Programs() as programs:
        try:
            yield Fleet(folder, programs, mode)
        except SystemExit:
            for program in programs:
                print(f"== {program.name}\n{program.log.read_text(errors='replace')[-3000:]}", file=sys.stderr)
            raise


def by_router(mode, right):
    with fleet(mode) as running:
        for _ in range(ARGUMENTS.workers):
            running.add_worker()
        running.add_frontend()
        run = Run(ARGUMENTS, streamed(FRONTEND)).all()
        return {
            **run.summary(),
            "requests_by_worker": running.requests(),
            "wrong": run.wrong(right),
            "taken_back": leave_early(running),
            "refusal": refused(),
            "exit_statuses": running.end(),
        }


def killed(right):
    with fleet("kv") as running:
        for _ in range(ARGUMENTS.workers):
            running.add_worker()
        # The frontend brings requests of a worker that is gone to another.
        running.add_frontend(["--migration-limit", 3])
        return with_a_kill(ARGUMENTS, FRONTEND, running.workers, running.ports, right)


def complete(prompt):
    status, _, answer, _ = workers.stream(FRONTEND, "/v1/completions", {"model": "model", "prompt": prompt, "max_tokens": 2, "temperature": 0})
    if status != 200:
        sys.exit(f"the frontend answers with {status}: {answer}")


def from_disk():
    """Requests to a new worker, and to one that finds their prompts on the disk of one before it. Its router has nothing but events to choose by."""
    texts = [f"Text {number}. " + " ".join(WORDS[number * 300 : number * 300 + 300]) for number in range(8)]
    with tempfile.TemporaryDirectory() as cache:
        for worker_options in [[["--prefix-cache", cache]], [[], ["--prefix-cache", cache]]]:
            with fleet("kv") as running:
                for options in worker_options:
                    running.add_worker(options)
                running.add_frontend()
                for text in texts:
                    complete(text)
                requests = running.requests()
                running.end()
    return requests


def refused():
    """Checks the error for a request that a worker does not support."""
    status, answer = workers.post(FRONTEND, "/v1/completions", {"model": "model", "prompt": "In the beginning", "max_tokens": 2, "n": 2})
    return f"{status} {answer.get('message', answer)}"


def leave_early(running):
    """Checks that a worker cancels the request of a client that disconnects after the first text."""
    aborted = lambda: sum(running.requests('finished_reason="abort"'))
    before = aborted()
    connection = http.client.HTTPConnection(workers.HOST, FRONTEND, timeout=60)
    body = {"model": "model", "prompt": "In the beginning", "max_tokens": 7000, "ignore_eos": True, "temperature": 0, "stream": True}
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    first = response.readline()
    if response.status != 200 or not first.startswith(b"data: "):
        sys.exit(f"the frontend answers with {response.status}: {first + response.read()}")
    # The response holds the socket too.
    response.close()
    connection.close()
    for _ in range(100):
        if aborted() > before:
            return True
        time.sleep(0.1)
    return False


# A network of its own begins without a loopback.
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
RIGHT = expected()
RESULT = {mode: by_router(mode, RIGHT) for mode in ["round-robin", "kv"]}
KILLED = killed(RIGHT)
NEW, KNOWING = from_disk()
print(json.dumps(RESULT | {"killed": KILLED, "new_worker": NEW, "worker_with_prompts_on_disk": KNOWING}, indent=1))
for mode, run in RESULT.items():
    if run["wrong"]:
        sys.exit(f"{mode}: an answer was wrong")
    if not run["taken_back"]:
        sys.exit(f"{mode}: the request of a client that left went on")
    if not run["refusal"].startswith("400 n: "):
        sys.exit(f"{mode}: a worker's refusal did not reach its client: {run['refusal']}")
    if any(run["exit_statuses"]):
        sys.exit(f"{mode}: a worker did not end as it should")
if KILLED["wrong"] or not KILLED["requests_after"]:
    sys.exit("after a worker was killed an answer was wrong, or it got no requests when it was there again")
if NEW or not KNOWING:
    sys.exit("the router does not know what lies on a worker's disk")
