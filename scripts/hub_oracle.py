"""A small hub, Python's huggingface_hub and `riffle` on one cache. Usage: hub_oracle.py PROGRAM"""

import hashlib
import http.server
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LARGE = 1 << 20
PROGRAM = os.path.abspath(sys.argv[1])
MODEL = pathlib.Path("fixtures/model")
BIG = os.urandom(8 << 20)


def contents():
    files = {path.name: path.read_bytes() for path in MODEL.iterdir() if path.is_file()}
    files["README.md"] = b"a model"
    files["pytorch_model.bin"] = b"a pickle"
    return {"owner/folder": files, "owner/big": {"big-Q4_0.gguf": BIG, "big-Q8_0.gguf": os.urandom(3 << 20)}}


REPOSITORIES = contents()


def is_large(content):
    return len(content) >= LARGE


def total(content):
    if is_large(content):
        return hashlib.sha256(content).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class Hub(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    slow = False
    served = 0

    def log_message(self, *_):
        pass

    def answer(self, status, headers, body=b""):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", headers.get("X-Length", str(len(body))))
        self.end_headers()
        if self.command == "HEAD":
            return
        for start in range(0, len(body), 64 << 10):
            self.wfile.write(body[start : start + (64 << 10)])
            Hub.served += len(body[start : start + (64 << 10)])
            if Hub.slow:
                time.sleep(0.02)

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        path = self.path.split("?")[0].strip("/").split("/")
        name = "/".join(path[2:4] if path[0] == "api" else path[0:2])
        files = REPOSITORIES.get(name)
        if files is None:
            return self.answer(404, {"X-Error-Code": "RepoNotFound"})
        if path[0] == "api" and "tree" in path:
            entries = []
            for file, content in files.items():
                entry = {"type": "file", "path": file, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
                if is_large(content):
                    entry["lfs"] = {"oid": total(content), "size": len(content), "pointerSize": 130}
                else:
                    entry["oid"] = total(content)
                entries.append(entry)
            return self.answer(200, {"Content-Type": "application/json"}, json.dumps(entries).encode())
        if path[0] == "api":
            siblings = [{"rfilename": file} for file in files]
            about = {"sha": COMMIT, "id": name, "siblings": siblings, "tags": [], "private": False, "downloads": 0, "likes": 0}
            return self.answer(200, {"Content-Type": "application/json"}, json.dumps(about).encode())
        content = files.get("/".join(path[4:]))
        if content is None:
            return self.answer(404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT})
        headers = {"ETag": f'"{total(content)}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        if is_large(content):
            headers |= {"X-Linked-ETag": f'"{total(content)}"', "X-Linked-Size": str(len(content))}
        wanted = self.headers.get("Range")
        if wanted:
            first = int(wanted.removeprefix("bytes=").split("-")[0])
            headers["Content-Range"] = f"bytes {first}-{len(content) - 1}/{len(content)}"
            return self.answer(206, headers, content[first:])
        self.answer(200, headers, content)

    def handle(self):
        try:
            super().handle()
        except ConnectionError:
            pass  # A client that was killed.


SERVER = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
threading.Thread(target=SERVER.serve_forever, daemon=True).start()
ENDPOINT = f"http://127.0.0.1:{SERVER.server_address[1]}"


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
    path = riffle(cache, "pull", "owner/big").strip()
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
    child = subprocess.Popen([PROGRAM, "pull", "owner/big"], env=environment(cache), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
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
    path = riffle(cache, "pull", "owner/big").strip()
    same(Hub.served < len(BIG) - left + 10_000, True, "the next pull brings the rest alone")
    same(pathlib.Path(path).read_bytes() == BIG, True, "and the file is right")


def both_at_once(cache):
    Hub.slow, Hub.served = True, 0
    code = "import huggingface_hub as hub\nhub.hf_hub_download('owner/big', 'big-Q4_0.gguf')"
    children = [
        subprocess.Popen([PROGRAM, "pull", "owner/big"], env=environment(cache), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL),
        subprocess.Popen([sys.executable, "-c", code], env=environment(cache), stderr=subprocess.DEVNULL),
        subprocess.Popen([PROGRAM, "pull", "owner/big"], env=environment(cache), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL),
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
