"""The server of the page, for this machine alone."""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import weft as wf
from weft.tools.board.page import as_json, page_text, sample_bytes
from weft.tools.board.reading import read_runs, run_folders, run_name

LOOPBACK = "127.0.0.1"
HOSTS = ("127.0.0.1", "localhost")
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
POLICY += "connect-src 'self'; img-src 'self' data:; media-src 'self' data:"
"""What the page may load: nothing from elsewhere."""


class BoardServer(ThreadingHTTPServer):
    """Serves the runs below a folder; port 0 takes one that is free."""

    daemon_threads = True

    def __init__(self, root: Path, port: int = 0) -> None:
        self.root = root.resolve()
        try:
            super().__init__((LOOPBACK, port), _Handler)
        except OSError as error:
            raise wf.ArgumentError(
                "board",
                f"the port cannot be taken: {error.strerror or error}",
                expected="a port that is free, from 1024 to 65535",
                got={"port": port},
                fix="--port 0 takes any that is free",
            ) from None

    @property
    def address(self) -> str:
        """What to open in a browser."""
        return f"http://{LOOPBACK}:{self.server_address[1]}/"


class _Handler(BaseHTTPRequestHandler):
    server: BoardServer
    timeout = 10.0

    def do_GET(self) -> None:
        """Answer with the page, the runs, or a sample."""
        if (self.headers.get("Host") or "").rpartition(":")[0] not in HOSTS:
            # a page from elsewhere whose name was made to mean this machine
            self._reply(403, "text/plain", b"this server answers to its own address alone")
            return
        path = unquote(urlsplit(self.path).path)
        if path == "/":
            self._reply(200, "text/html; charset=utf-8", page_text().encode())
        elif path == "/runs":
            self._reply(200, "application/json", as_json(read_runs(self.server.root)).encode())
        elif path.startswith("/sample/"):
            self._reply_sample(path.removeprefix("/sample/"))
        else:
            self._reply(404, "text/plain", b"there is nothing here")

    def _reply_sample(self, path: str) -> None:
        name, _, file = path.rpartition("/")
        root = self.server.root
        for folder in run_folders(root):
            found = sample_bytes(folder, file) if run_name(root, folder) == name else None
            if found is not None:
                self._reply(200, *found)
                return
        self._reply(404, "text/plain", b"there is no such sample")

    def _reply(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Security-Policy", POLICY)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing of each request."""
