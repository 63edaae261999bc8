"""A server for one exported folder, on this machine alone.

Only the files that are in the folder when it starts are served, by exact name: no listing, no paths, nothing
that a link could lead to outside. Requests must name this machine as their host, so that no web page
elsewhere can reach the server through a name of its own that points here.
"""

from __future__ import annotations

import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

ADDRESS = "127.0.0.1"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
}
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class PageServer(ThreadingHTTPServer):
    """`serve_forever` until `shutdown`; `address` is what to open."""

    daemon_threads = True

    def __init__(self, folder: Path, port: int = 0):
        self.files = {
            f"/{path.relative_to(folder).as_posix()}": path
            for path in Path(folder).rglob("*")
            if path.is_file() and not path.is_symlink() and path.suffix in TYPES
        }
        super().__init__((ADDRESS, port), Handler)

    @property
    def address(self) -> str:
        return f"http://{ADDRESS}:{self.server_port}/"

    @property
    def hosts(self) -> set[str]:
        """What a request may name as its host; browsers leave the port out where it is HTTP's own."""
        names = (ADDRESS, "localhost")
        return {f"{name}:{self.server_port}" for name in names} | set(names if self.server_port == 80 else ())

    def handle_error(self, request, client_address) -> None:
        """A browser that goes away before it has everything, as on a reload, is no error to print."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    server: PageServer
    server_version, sys_version = "rmc-explore", ""
    protocol_version = "HTTP/1.1"
    timeout = 30  # seconds an idle connection is kept

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def _answer(self, with_body: bool) -> None:
        if self.headers.get("Host") not in self.server.hosts:
            return self._send(
                421, "text/plain; charset=utf-8", b"this server is for its own machine\n", with_body
            )
        name = unquote(self.path.partition("?")[0])  # urlsplit raises for some malformed requests
        path = self.server.files.get("/index.html" if name == "/" else name)
        if path is None:
            return self._send(404, "text/plain; charset=utf-8", b"not found\n", with_body)
        return self._send(200, TYPES[path.suffix], path.read_bytes(), with_body)

    def _send(self, status: int, kind: str, body: bytes, with_body: bool) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(body)), **HEADERS}.items():
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def log_message(self, *_) -> None:
        """Nothing: the terminal is for the address and for errors."""
