"""A local stand-in for the Hugging Face Hub: the few endpoints that a pinned download needs, and its accidents.

HEAD and GET of /<repo>/resolve/<revision>/<file>: small files are served in place with a git blob id as ETag,
large ones are redirected to /cdn/<sha256> with their SHA-256 as X-Linked-Etag, as the real hub does. `cut_once`
ends an answer half way; `corrupt_once` changes a byte; `fail_next` answers 503.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

LARGE = 4096  # bytes from which a file is served through the CDN


@dataclass
class Hub:
    """What is served and what was asked for."""

    repo: str
    revision: str
    files: dict[str, bytes]
    served_revision: str = ""
    cut_once: set[str] = field(default_factory=set)
    corrupt_once: set[str] = field(default_factory=set)
    fail_next: int = 0  # answers of 503 to GET before serving again
    fail_after_cut: int = 0
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)  # method, file, Range
    url: str = ""
    authorizations: list[str] = field(default_factory=list)

    def gets(self, name: str) -> list[str | None]:
        """The Range headers of the GET requests for one file, in order."""
        return [header for method, file, header in self.requests if method == "GET" and file == name]


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def blob_id(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _answer(self, body: bool) -> None:
        hub, parts = self.hub, self.path.strip("/").split("/")
        if "authorization" in self.headers:
            hub.authorizations.append(self.headers["authorization"])
        if parts[0] == "cdn":
            name = next(name for name, data in hub.files.items() if sha256(data) == parts[1])
            self._send(name, body)
        elif "/".join(parts[:2]) == hub.repo and parts[2:4] == ["resolve", hub.revision]:
            self._resolve("/".join(parts[4:]), body)
        else:
            self._empty(404, {"X-Error-Code": "RevisionNotFound", "X-Error-Message": "no such revision"})

    def _resolve(self, name: str, body: bool) -> None:
        hub = self.hub
        commit = {"X-Repo-Commit": hub.served_revision or hub.revision}
        data = hub.files.get(name)
        if data is None:
            self._empty(404, {"X-Error-Code": "EntryNotFound", **commit})
        elif len(data) >= LARGE:
            linked = {"X-Linked-Etag": f'"{sha256(data)}"', "X-Linked-Size": str(len(data))}
            cdn = hub.url.replace("127.0.0.1", "localhost")  # another host, as the real one
            self._empty(302, {"Location": f"{cdn}/cdn/{sha256(data)}", **linked, **commit})
        else:
            self._send(name, body, commit)

    def _send(self, name: str, body: bool, extra: dict[str, str] | None = None) -> None:
        hub, data = self.hub, self.hub.files[name]
        hub.requests.append((self.command, name, self.headers.get("Range")))
        if body and hub.fail_next:
            hub.fail_next -= 1
            return self._empty(503, {})
        start = int(self.headers["Range"].removeprefix("bytes=").rstrip("-")) if "Range" in self.headers else 0
        if body and name in hub.corrupt_once:
            hub.corrupt_once.discard(name)
            data = data[:-1] + bytes([data[-1] ^ 1])
        self.send_response(206 if start else 200)
        self.send_header("ETag", f'"{blob_id(self.hub.files[name])}"')
        self.send_header("Content-Length", str(len(data) - start))
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        for header, value in (extra or {}).items():
            self.send_header(header, value)
        self.end_headers()
        if not body:
            return None
        if name in hub.cut_once:
            hub.cut_once.discard(name)
            hub.fail_next = hub.fail_after_cut
            self.wfile.write(data[start : start + (len(data) - start) // 2])
            self.close_connection = True
            return None
        self.wfile.write(data[start:])
        return None

    def _empty(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for header, value in headers.items():
            self.send_header(header, value)
        self.send_header("Content-Length", "0")
        self.end_headers()


@contextmanager
def serve(hub: Hub) -> Iterator[Hub]:
    """Serve `hub` on a free port of 127.0.0.1 until the block ends."""
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join(timeout=10)
