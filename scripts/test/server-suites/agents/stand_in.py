"""A proxy between a client and `riffle serve`: adds to each request the form of the answer that is due, and keeps the requests."""

import http.client
import http.server
import json
import pathlib
import threading
import urllib.parse

import play as plays

HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "host", "accept-encoding"}


class StandIn:
    """A proxy on a free port of 127.0.0.1. `kept` has each request with its answer, and `due`, the answer of the play."""

    def __init__(self, server, play, folder):
        self.server = urllib.parse.urlsplit(server)
        self.play = play
        self.folder = pathlib.Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.kept = []
        self.lock = threading.Lock()
        handler = type("Handler", (Handler,), {"stand_in": self})
        self.listener = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.listener.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.listener.server_port}"
        threading.Thread(target=self.listener.serve_forever, daemon=True).start()

    def close(self):
        self.listener.shutdown()
        self.listener.server_close()

    def keep(self, method, path, headers, body, status, answer, due):
        with self.lock:
            self.kept.append(
                {"method": method, "path": path, "headers": headers, "body": body, "status": status, "answer": answer, "due": due}
            )
            number = len(self.kept)
            (self.folder / f"{number:03}.json").write_text(json.dumps(self.kept[-1], indent=1))

    def refused(self):
        """The requests that the server refused."""
        return [one for one in self.kept if one["status"] >= 400]


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    stand_in = None

    def log_message(self, *_):
        pass

    def pass_on(self):
        own = self.stand_in
        length = int(self.headers.get("content-length") or 0)
        sent = self.rfile.read(length)
        if self.headers.get("transfer-encoding", "").lower() == "chunked":
            sent = self.read_chunks()
        shape = plays.shape_of(self.path) if self.command == "POST" else None
        body, changed = None, sent
        if sent:
            try:
                body = json.loads(sent)
            except ValueError:
                body = sent.decode(errors="replace")
        answer = None
        if shape and isinstance(body, dict):
            answer = own.play.answer(body)
            if not plays.has_form(shape, body):
                changed = json.dumps(plays.with_form(shape, body, answer)).encode()
        headers = {name: value for name, value in self.headers.items() if name.lower() not in HOP_BY_HOP}
        connection = http.client.HTTPConnection(own.server.hostname, own.server.port, timeout=600)
        try:
            connection.request(self.command, self.path, body=changed or None, headers=headers)
            response = connection.getresponse()
            told = self.answer_with(response)
        except OSError as error:
            own.keep(self.command, self.path, dict(self.headers), body, 599, str(error), answer)
            self.close_connection = True
            return None
        finally:
            connection.close()
        own.keep(self.command, self.path, dict(self.headers), body, response.status, told.decode(errors="replace"), answer)
        return None

    def read_chunks(self):
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def answer_with(self, response):
        """Passes a response on as it comes, and returns its body."""
        self.send_response_only(response.status)
        for name, value in response.getheaders():
            if name.lower() not in HOP_BY_HOP:
                self.send_header(name, value)
        if self.command == "HEAD" or response.status in (204, 304):
            self.end_headers()
            return b""
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        told = []
        while part := response.read1(65536):
            told.append(part)
            self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
            self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")
        return b"".join(told)

    do_GET = do_POST = do_HEAD = do_PUT = do_DELETE = do_OPTIONS = pass_on
