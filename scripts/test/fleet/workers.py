"""Programs of a fleet on this machine: started, asked over HTTP, killed, ended."""

import http.client
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[3]
HOST = "127.0.0.1"


class Program:
    """A program with a log. It ends with the script that started it."""

    def __init__(self, name, command, folder, environment=None):
        self.name, self.command, self.environment = name, [str(part) for part in command], environment or {}
        self.log = pathlib.Path(folder) / f"{name}.log"
        self.start()

    def start(self):
        with open(self.log, "ab") as log:
            environment = {**os.environ, **self.environment}
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log, env=environment)

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def end(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.kill()

    def fail(self, problem):
        tail = self.log.read_text(errors="replace")[-2000:]
        sys.exit(f"{self.name}: {problem}\n{tail}")


class Programs(list):
    """Programs that end together."""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for program in reversed(self):
            program.end()

    def add(self, *arguments, **named):
        self.append(Program(*arguments, **named))
        return self[-1]


def get(port, path, timeout=5):
    connection = http.client.HTTPConnection(HOST, port, timeout=timeout)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def post(port, path, body, timeout=600):
    """Status and JSON of a request; status 0 where the connection broke."""
    connection = http.client.HTTPConnection(HOST, port, timeout=timeout)
    try:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        data = response.read()
        return response.status, json.loads(data) if data.startswith(b"{") else {"text": data.decode(errors="replace")}
    except (OSError, http.client.HTTPException, ValueError) as error:
        return 0, {"error": str(error)}
    finally:
        connection.close()


def stream(port, path, body, timeout=600):
    """Status, seconds to the first text, text and usage of a streamed completion; status 0 where the stream broke."""
    connection = http.client.HTTPConnection(HOST, port, timeout=timeout)
    began, first, parts, usage, status = time.perf_counter(), None, [], {}, 0
    try:
        body = {**body, "stream": True, "stream_options": {"include_usage": True}}
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        status, is_whole = response.status, False
        for line in response:
            if not line.startswith(b"data: "):
                continue
            if line.startswith(b"data: [DONE]"):
                is_whole = True
                break
            event = json.loads(line[6:])
            usage = event.get("usage") or usage
            for choice in event.get("choices", []):
                text = choice.get("text") or (choice.get("delta") or {}).get("content") or ""
                if text and first is None:
                    first = time.perf_counter() - began
                parts.append(text)
        if status == 200 and not is_whole:
            status = 0
    except (OSError, http.client.HTTPException, ValueError):
        status = 0
    finally:
        connection.close()
    return status, first, "".join(parts), usage


def wait_for(program, port, path="/health", seconds=120, ready=lambda status, data: status == 200):
    for _ in range(seconds * 10):
        if program.process.poll() is not None:
            program.fail(f"ended with {program.process.returncode}")
        try:
            if ready(*get(port, path)):
                return
        except OSError:
            pass
        time.sleep(0.1)
    program.fail(f"nothing at http://{HOST}:{port}{path} after {seconds} s")


def metric(port, name, label=""):
    """The sum of a metric over its labels, or over those with this one."""
    _, data = get(port, "/metrics")
    lines = [line.split() for line in data.decode().splitlines() if line and not line.startswith("#")]
    return sum(float(value) for key, value, *_ in lines if key.split("{")[0] == name and label in key)


def worker(programs, folder, number, arguments, port, extra=()):
    """Starts a `riffle serve`."""
    command = [arguments.riffle, "serve", "--model", arguments.model, "--alias", "model", "--port", port]
    return programs.add(f"worker-{number}", [*command, *sizes(arguments), *extra], folder)


def sizes(arguments):
    """Options of every worker: how much it computes with and holds."""
    held = ["--ctx", arguments.context, "--pool-tokens", arguments.pool_tokens]
    return ["--threads", arguments.threads, "--parallel", 8, *held, "--quiet"]


def add_options(parser, workers):
    parser.add_argument("--riffle", required=True)
    parser.add_argument("--model", default=str(ROOT / "fixtures/model"), help="a model that completes text")
    parser.add_argument("--workers", type=int, default=workers)
    parser.add_argument("--threads", type=int, default=1, help="threads of each worker")
    parser.add_argument("--context", type=int, default=8192)
    parser.add_argument("--pool-tokens", type=int, default=20480, help="tokens that a worker holds")
    parser.add_argument("--port", type=int, default=28300, help="first of the ports that are taken on the loopback")
