"""A small Hugging Face hub on this machine, as far as downloads of models need one."""

import functools
import hashlib
import http.server
import json
import threading
import time

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LARGE = 1 << 20


def is_large(content):
    return len(content) >= LARGE


@functools.cache
def total(content):
    if is_large(content):
        return hashlib.sha256(content).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class Hub(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    repositories = {}
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
        files = Hub.repositories.get(name)
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


def start(repositories):
    """Serves repositories, {"owner/name": {file: bytes}}, until the process ends; the address to reach them."""
    Hub.repositories = repositories
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_address[1]}"
