"""Metrics for scraping during a run (`--metrics-port`): a small HTTP server on a
thread of its own, which ends with the run.

It never takes the run's lock. However often it is asked, it looks at the run at most every
quarter of a second, so that asking cannot slow a run down.
"""

import errno
import logging
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any, Self

from kv_cache.core.errors import PlaceError, os_reason
from kv_cache.metrics.exposition import CONTENT_TYPE

PATH = "/metrics"
FRESH_S = 0.25  # so long a text is served again
_PATIENCE_S = 5.0  # with a client that does not go on
_AT_MOST = 64  # clients at once; for another the oldest goes, if it is slow
_SLOW_S = 1.0  # an answer takes some ms

Text = Callable[[], str]

log = logging.getLogger("kv_cache")


def check_endpoint(host: str, port: int) -> None:
    """Refuse an address that cannot be listened on, before anything begins. Raises PlaceError."""
    _bound(host, port).server_close()


class Endpoint:
    """Listens from its creation until it is closed. `render` may be changed at any time."""

    def __init__(self, host: str, port: int, render: Text) -> None:
        """Raises PlaceError."""
        self.render = render
        self._server = _bound(host, port)
        self._server.text = self._text
        self._lock = threading.Lock()
        self._last: tuple[float, bytes] | None = None
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True,
            name="metrics",
        )  # fmt: skip
        self._thread.start()
        log.info("metrics at %s", self.url)

    @property
    def url(self) -> str:
        host, port = self._server.server_address[:2]
        shown = f"[{host!s}]" if ":" in str(host) else str(host)
        return f"http://{shown}:{port}{PATH}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop answering; clients that are being answered are left behind."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _text(self) -> bytes:
        with self._lock:
            now = time.monotonic()
            if self._last is None or now - self._last[0] >= FRESH_S:
                self._last = now, self.render().encode()
            return self._last[1]


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128
    text: Callable[[], bytes]

    def __init__(self, family: socket.AddressFamily, address: Any) -> None:
        self.address_family = family
        self._clients: dict[Any, float] = {}  # when each came, the oldest first
        self._clients_lock = threading.Lock()
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        TCPServer.server_bind(self)  # without a look at the names of hosts, which may take long
        self.server_name, self.server_port = "kv-cache", self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._has_place():
            with self._clients_lock:
                self._clients[request] = time.monotonic()
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def _has_place(self) -> bool:
        """Whoever sends or reads a byte at a time keeps nobody out."""
        with self._clients_lock:
            if len(self._clients) < _AT_MOST:
                return True
            oldest, came = next(iter(self._clients.items()))
            if time.monotonic() - came < _SLOW_S:
                return False
            del self._clients[oldest]
        with suppress(OSError):  # it has just ended
            oldest.shutdown(socket.SHUT_RDWR)
        return True

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._clients_lock:
                self._clients.pop(request, None)

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("a client of the metrics went away", exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    server_version = "kv-cache"
    sys_version = ""
    timeout = _PATIENCE_S

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def _answer(self, *, body: bool) -> None:
        path = self.path.partition("?")[0]
        if path == PATH:
            status, kind, data = self._metrics()
        elif path == "/":
            status, kind, data = 200, "text/plain", f"kv-cache: {PATH}\n".encode()
        else:
            status, kind, data = 404, "text/plain", f"only {PATH} is here\n".encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if body:
            self.wfile.write(data)

    def _metrics(self) -> tuple[int, str, bytes]:
        try:
            return 200, CONTENT_TYPE, self.server.text()
        except Exception:
            log.exception("the metrics could not be rendered")
            return 500, "text/plain", b"the metrics could not be rendered, see the log\n"

    def log_message(self, format: str, *args: Any) -> None:
        log.debug("metrics: %s", format % args)


def _bound(host: str, port: int) -> _Server:
    family, address = address_of("metrics", host, port)
    try:
        return _Server(family, address)
    except OSError as error:
        raise PlaceError(why_not_listening("metrics", host, port, error)) from None


def address_of(name: str, host: str, port: int) -> tuple[socket.AddressFamily, Any]:
    """Return where to listen for the options `--NAME-host` and `--NAME-port`, or `--host` and
    `--port`. Raises PlaceError for no address of this machine."""
    flag = f"--{name}-host" if name else "--host"
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError) as error:
        raise PlaceError(
            f"{flag} {host!r}: no such address ({os_reason(error)}); give one of this machine's"
        ) from None
    family, _, _, _, address = addresses[0]
    return family, address


def why_not_listening(name: str, host: str, port: int, error: OSError) -> str:
    """Say why an address cannot be listened on, and the way out."""
    prefix = f"{name}-" if name else ""
    where = f"--{prefix}port {port}"
    if error.errno == errno.EADDRINUSE:
        return f"{where}: it is in use on {host}; name another, or 0 for any that is free"
    if error.errno == errno.EACCES:
        return f"{where}: this user may not listen there; name one above 1023, or 0 for any"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"--{prefix}host {host}: it is not an address of this machine; give one that is"
    return f"{where} on {host}: it cannot be listened on ({os_reason(error)}); name another"
