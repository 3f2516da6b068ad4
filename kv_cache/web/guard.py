"""Who may ask: looked at before any route sees a request.

- Host must be an address of this server, so that a name that a stranger points at it does not work.
- Origin and Sec-Fetch-Site, which browsers send, must be this server's own; a link may lead from
  anywhere to the page and to the page of results, as nobody but the reader sees what it shows.
- What changes something is JSON, or bytes for an upload: both make a browser of another origin ask
  first, and nobody answers it. So no form, image or script elsewhere can do anything here.
- With a token, everything but the page's own files needs it, in a header or in the cookie that the
  page gets for it.
- A body has a bound, whatever its length says.
"""

import hmac
import ipaddress
import socket
from collections.abc import Callable, Mapping
from http.cookies import CookieError, SimpleCookie
from typing import TYPE_CHECKING

import orjson
from msgspec import Struct

from kv_cache.web.serve_options import LOOPBACK

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

COOKIE = "kv_cache_token"
MOST_JSON_BYTES = 1 << 20
MOST_UPLOAD_BYTES = 256 << 20
UPLOADS = "/traces"
_OPEN = ("/", "/favicon.ico", "/login")
_STATIC = "/static/"
_JSON = "application/json"
_BYTES = "application/octet-stream"


class Refusal(Struct, frozen=True):
    """Why a request is not served: a status of HTTP, a word for programs, and a sentence."""

    status: int
    kind: str
    sentence: str


class Guard:
    """The first that a request meets."""

    def __init__(self, app: "ASGIApp", host: str, port: Callable[[], int], token: str | None):
        self._app, self._host, self._port, self._token = app, host, port, token

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {k.decode("latin-1"): v.decode("latin-1") for k, v in scope["headers"]}
        path, method = scope["path"], scope["method"]
        refusal = self._foreign(path, headers) or self._unknown(path, headers)
        if refusal is None and method not in ("GET", "HEAD"):
            refusal = _no_simple_request(method, path, headers)
        if refusal is None:
            refusal = _too_large(path, headers)
        if refusal is not None:
            await answer(send, refusal)
            return
        bound = MOST_UPLOAD_BYTES if path == UPLOADS else MOST_JSON_BYTES
        await self._app(scope, _bounded(receive, bound), _with_headers(send))

    def _foreign(self, path: str, headers: Mapping[str, str]) -> Refusal | None:
        host = headers.get("host", "")
        if not self._is_ours(host):
            return Refusal(
                403, "foreign-host",
                f"this server is not {host[:100]!r}; ask it by its address and port",
            )  # fmt: skip
        origin = headers.get("origin", f"http://{host}")
        site = headers.get("sec-fetch-site", "none")
        linked = path == "/" or (path == "/page" and headers.get("sec-fetch-dest") == "document")
        if origin != f"http://{host}" or not (linked or site in ("same-origin", "none")):
            return Refusal(
                403, "foreign-origin", "another site's page may not use this server; open its own"
            )
        return None

    def _is_ours(self, host: str) -> bool:
        """Whether a Host header names this server. Where it listens on every address of the
        machine, any address may be meant, and its name; a token is asked for there."""
        name, _, port = host.rpartition(":")
        if not name or port != str(self._port()):
            return False
        name = name.strip("[]").lower()
        if self._host in LOOPBACK:
            return name in LOOPBACK
        return name in (self._host, socket.gethostname().lower()) or _is_address(name)

    def _unknown(self, path: str, headers: Mapping[str, str]) -> Refusal | None:
        if self._token is None or path in _OPEN or path.startswith(_STATIC):
            return None
        _, _, bearer = headers.get("authorization", "").partition("Bearer ")
        if self.knows(bearer) or self.knows(_cookie(headers.get("cookie", ""))):
            return None
        return Refusal(
            401, "no-token",
            "this server needs the token that it was started with, as the header "
            "'Authorization: Bearer TOKEN'",
        )  # fmt: skip

    def knows(self, token: str) -> bool:
        """Whether it is the token."""
        return self._token is not None and hmac.compare_digest(token.encode(), self._token.encode())


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _cookie(header: str) -> str:
    try:
        morsel = SimpleCookie(header).get(COOKIE)
    except CookieError:
        return ""
    return "" if morsel is None else morsel.value


def _no_simple_request(method: str, path: str, headers: Mapping[str, str]) -> Refusal | None:
    """Refuse what a browser would send for a stranger's page without asking first."""
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    wanted = _BYTES if path == UPLOADS else _JSON
    if method == "DELETE" or kind == wanted:
        return None
    return Refusal(
        415, "content-type", f"{method} {path} takes {wanted}; send it with that Content-Type"
    )


def _too_large(path: str, headers: Mapping[str, str]) -> Refusal | None:
    bound = MOST_UPLOAD_BYTES if path == UPLOADS else MOST_JSON_BYTES
    length = headers.get("content-length", "0")
    if not length.isdecimal() or int(length) > bound:
        return too_large(bound)
    return None


def too_large(bound: int) -> Refusal:
    """Return what is said of a body that is larger than may be."""
    return Refusal(
        413, "too-large",
        f"a body of more than {bound >> 20} MiB is not taken here; copy the file into a folder of "
        "the server, and name it",
    )  # fmt: skip


class TooLargeError(Exception):
    """A body went on beyond its bound."""


def _bounded(receive: "Receive", bound: int) -> "Receive":
    taken = 0

    async def bounded() -> "Message":
        nonlocal taken
        message = await receive()
        taken += len(message.get("body", b""))
        if taken > bound:
            raise TooLargeError
        return message

    return bounded


_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"SAMEORIGIN"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
)


def _with_headers(send: "Send") -> "Send":
    async def sending(message: "Message") -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), *_HEADERS]
        await send(message)

    return sending


async def answer(send: "Send", refusal: Refusal) -> None:
    """Send a refusal, without reading a body, and close the connection."""
    body = orjson.dumps({"error": {"kind": refusal.kind, "sentence": refusal.sentence}})
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
        *_HEADERS,
    ]
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
