"""A small hub, Python's huggingface_hub and `riffle` on one cache. Usage: hub_oracle.py PROGRAM"""

import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

import small_hub
from small_hub import Hub

PROGRAM = os.path.abspath(sys.argv[1])
MODEL = pathlib.Path("fixtures/model")
BIG = os.urandom(8 << 20)


def contents():
    files = {path.name: path.read_bytes() for path in MODEL.iterdir() if path.is_file()}
    files["README.md"] = b"a model"
    files["pytorch_model.bin"] = b"a pickle"
    return {"owner/folder": files, "owner/big": {"big-Q4_0.gguf": BIG, "big-Q8_0.gguf": os.urandom(3 << 20)}}


ENDPOINT = small_hub.start(contents())


def environment(cache, **more):
    keep = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return keep | {"HF_ENDPOINT": ENDPOINT, "HF_HUB_CACHE": str(cache), "HF_HUB_DISABLE_TELEMETRY": "1"} | more


def riffle(cache, *words, **more):
    done = subprocess.run([PROGRAM, *words], env=environment(cache, **more), capture_output=True, text=True, timeout=120)
    if done.returncode:
        raise SystemExit(f"riffle {' '.join(words)}: {done.stderr}")
    return done.stdout


def python(cache, code, **more):
    code = "import huggingface_hub as hub\n" + code
    done = subprocess.run([sys.executable, "-c", code], env=environment(cache, **more), capture_output=True, text=True, timeout=120)
    if done.returncode:
        raise SystemExit(f"{code}: {done.stderr}")
    return done.stdout.strip()


def listed(cache):
    return {model["name"]: model for model in json.loads(riffle(cache, "list", "--json"))}


def same(found, expected, what):
    if found != expected:
        raise SystemExit(f"{what}: {found!r}, expected {expected!r}")
    print(f"ok  {what}")


def what_python_brought_is_found(cache):
    python(cache, "hub.hf_hub_download('owner/big', 'big-Q8_0.gguf')")
    folder = python(cache, "print(hub.snapshot_download('owner/folder', ignore_patterns=['*.bin']))")
    models = listed(cache)
    same(sorted(models), ["owner/big:Q8_0", "owner/folder"], "riffle list shows what Python brought")
    same([model["complete"] for model in models.values()], [True, True], "and takes it for complete")
    same(models["owner/folder"]["path"], folder, "both name the same folder")
    said = riffle(cache, "run", "--model", "owner/folder", "--prompt", "In the beginning", "-n", "4", "--raw", HF_HUB_OFFLINE="1")
    same(bool(said.strip()), True, "riffle run --model NAME answers with it, offline")
    before = Hub.served
    riffle(cache, "pull", "owner/big:Q8_0")
    same(Hub.served - before < 10_000, True, "riffle pull brings nothing again")


def what_riffle_brought_is_found(cache):
    path = riffle(cache, "pull", "owner/big:Q4_0").strip()
    found = python(cache, "print(hub.hf_hub_download('owner/big', 'big-Q4_0.gguf'))", HF_HUB_OFFLINE="1")
    same(found, path, "Python finds a file that riffle pulled, offline")
    same(pathlib.Path(found).read_bytes() == BIG, True, "with its bytes")
    folder = riffle(cache, "pull", "owner/folder").strip()
    found = python(cache, "print(hub.snapshot_download('owner/folder', allow_patterns=['*.json', '*.safetensors']))", HF_HUB_OFFLINE="1")
    same(found, folder, "Python finds a folder that riffle pulled, offline")
    same((pathlib.Path(folder) / "pytorch_model.bin").exists(), False, "riffle pulls no pickles")
    scan = "cache = hub.scan_cache_dir()\nprint(len(cache.warnings), sorted((r.repo_id, r.size_on_disk) for r in cache.repos))"
    sizes = [(name.split(":")[0], model["bytes"]) for name, model in sorted(listed(cache).items())]
    same(python(cache, scan), f"0 {sizes}", "Python scans the cache without warnings, and counts the same bytes")
    before = Hub.served
    python(cache, "hub.hf_hub_download('owner/big', 'big-Q4_0.gguf')")
    same(Hub.served - before < 10_000, True, "Python brings nothing again")
    riffle(cache, "rm", "owner/big")
    same(python(cache, scan).startswith("0 [('owner/folder'"), True, "Python scans the cache after riffle rm")


def a_kill_costs_nothing(cache):
    Hub.slow = True
    child = subprocess.Popen([PROGRAM, "pull", "owner/big:Q4_0"], env=environment(cache), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    partial = None
    while not partial or partial[0].stat().st_size < 1 << 20:
        time.sleep(0.02)
        partial = list(pathlib.Path(cache).glob("models--owner--big/blobs/*.incomplete"))
    child.send_signal(signal.SIGKILL)
    child.wait()
    time.sleep(0.2)
    left = partial[0].stat().st_size
    same(0 < left < len(BIG), True, f"a kill leaves {left} of {len(BIG)} bytes")
    Hub.slow, Hub.served = False, 0
    path = riffle(cache, "pull", "owner/big:Q4_0").strip()
    same(Hub.served < len(BIG) - left + 10_000, True, "the next pull brings the rest alone")
    same(pathlib.Path(path).read_bytes() == BIG, True, "and the file is right")


def both_at_once(cache):
    Hub.slow, Hub.served = True, 0
    code = "import huggingface_hub as hub\nhub.hf_hub_download('owner/big', 'big-Q4_0.gguf')"
    children = [
        subprocess.Popen([PROGRAM, "pull", "owner/big:Q4_0"], env=environment(cache), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL),
        subprocess.Popen([sys.executable, "-c", code], env=environment(cache), stderr=subprocess.DEVNULL),
        subprocess.Popen([PROGRAM, "pull", "owner/big:Q4_0"], env=environment(cache), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL),
    ]
    same([child.wait() for child in children], [0, 0, 0], "two pulls and a download by Python at once succeed")
    same(Hub.served < len(BIG) + 50_000, True, "and bring the file once")
    Hub.slow = False


def main():
    version = python(tempfile.gettempdir(), "print(hub.__version__)")
    print(f"huggingface_hub {version}, {subprocess.run([PROGRAM, '--version'], capture_output=True, text=True).stdout.strip()}")
    for check in (what_python_brought_is_found, what_riffle_brought_is_found, a_kill_costs_nothing, both_at_once):
        with tempfile.TemporaryDirectory() as cache:
            check(cache)


main()
