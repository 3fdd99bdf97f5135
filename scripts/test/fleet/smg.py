"""Workers behind SMG: hit rate and time to the first token by policy, and a worker that is killed in mid-run.

All answers are compared with those of one worker that is asked directly. Prints one JSON object; exits with 1 where an answer is wrong.
"""

import argparse
import json
import pathlib
import sys
import tempfile
import time

import workers
from conversations import Run, add_options, streamed, whole, with_a_kill

PARSER = argparse.ArgumentParser(description=__doc__)
workers.add_options(PARSER, workers=3)
add_options(PARSER)
ARGUMENTS = PARSER.parse_args()
ROUTER = ARGUMENTS.port
PORTS = [ARGUMENTS.port + 1 + number for number in range(ARGUMENTS.workers)]
# SMG sends nothing to a worker for so long after its connections have failed.
BREAKER_S = 2


def fleet(programs, folder, policy):
    started = [workers.worker(programs, folder, number, ARGUMENTS, port) for number, port in enumerate(PORTS)]
    for program, port in zip(started, PORTS):
        workers.wait_for(program, port)
    smg = pathlib.Path(sys.executable).parent / "smg"
    urls = [f"http://{workers.HOST}:{port}" for port in PORTS]
    # Health is asked for every second, so that a worker that comes back is used again soon.
    command = [smg, "launch", "--host", workers.HOST, "--port", ROUTER, "--policy", policy, "--worker-urls", *urls]
    command += ["--prometheus-host", workers.HOST, "--prometheus-port", ARGUMENTS.port + 20]
    command += ["--health-check-interval-secs", 1, "--health-failure-threshold", 2, "--health-success-threshold", 1]
    command += ["--retry-max-retries", 5, "--cb-timeout-duration-secs", BREAKER_S, "--log-level", "warn"]
    router = programs.add(f"smg-{policy}", command, folder)
    ready = lambda status, data: status == 200 and json.loads(data)["total"] == len(PORTS)
    workers.wait_for(router, ROUTER, "/workers", ready=ready)
    # The second worker's page says so before the first request may go there.
    time.sleep(2)
    return started


def expected():
    with tempfile.TemporaryDirectory() as folder, workers.Programs() as programs:
        workers.wait_for(workers.worker(programs, folder, "alone", ARGUMENTS, PORTS[0]), PORTS[0])
        return Run(ARGUMENTS, whole(PORTS[0])).all().answers


def by_policy(policy, right):
    with tempfile.TemporaryDirectory() as folder, workers.Programs() as programs:
        fleet(programs, folder, policy)
        run = Run(ARGUMENTS, streamed(ROUTER)).all()
        requests = [workers.metric(port, "vllm:request_success_total") for port in PORTS]
        return {**run.summary(), "wrong": run.wrong(right), "requests_by_worker": requests}


def killed(right):
    with tempfile.TemporaryDirectory() as folder, workers.Programs() as programs:
        return with_a_kill(ARGUMENTS, ROUTER, fleet(programs, folder, "cache_aware"), PORTS, right, pause_s=BREAKER_S + 1)


RIGHT = expected()
RESULT = {policy: by_policy(policy, RIGHT) for policy in ["round_robin", "cache_aware"]}
RESULT["killed"] = killed(RIGHT)
print(json.dumps(RESULT, indent=1))
if any(run["wrong"] for run in RESULT.values()) or RESULT["killed"]["requests_after"] == 0:
    sys.exit("an answer was wrong, or the worker did not come back")
