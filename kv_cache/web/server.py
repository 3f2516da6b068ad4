"""Listening: uvicorn with bounds on connections that say nothing, and the page's address."""

import asyncio
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from kv_cache.bench.endpoint import address_of, why_not_listening
from kv_cache.core.errors import ConfigError, PlaceError, os_reason
from kv_cache.web.api import UPLOAD_FOLDER, Site, application
from kv_cache.web.classes import Folders
from kv_cache.web.commands import WebCommand
from kv_cache.web.feed import Feeds
from kv_cache.web.guard import Guard
from kv_cache.web.index import Index
from kv_cache.web.jobs import Jobs
from kv_cache.web.serve_options import LOOPBACK, ServeOptions

MOST_SILENT = 128  # connections that ask nothing now; for one more the oldest goes
SILENT_S = 10.0


def serve(
    options: ServeOptions,
    commands: Mapping[str, WebCommand],
    listening: Callable[[str], object],
    tick_s: float = 1.0,
) -> None:
    """Serve until a signal comes; runs that go on are left to end. `listening` is told the page's
    address. Raises ConfigError, PlaceError."""
    _check(options)
    site_folder = _results(options.results)
    roots = [_folder(name) for name in options.folder]
    with _bound(options) as bound:
        port: int = bound.getsockname()[1]
        guards: list[Guard] = []
        jobs = Jobs(site_folder)
        site = Site(
            results=site_folder,
            folders=Folders((site_folder, *roots), site_folder / UPLOAD_FOLDER),
            commands=commands,
            jobs=jobs,
            feeds=Feeds(jobs, tick_s),
            index=Index(site_folder),
            guard=guards,
        )

        def guarded(app: Any) -> Guard:
            guards.append(Guard(app, options.host, lambda: port, options.token))
            return guards[0]

        config = uvicorn.Config(
            application(site, guarded), http=Bounded, ws="none", lifespan="off",
            log_level="warning", access_log=False, server_header=False, timeout_keep_alive=30,
            timeout_graceful_shutdown=1,
        )  # fmt: skip
        shown = f"[{options.host}]" if ":" in options.host else options.host
        listening(f"http://{shown}:{port}/")
        uvicorn.Server(config).run(sockets=[bound])


def _check(options: ServeOptions) -> None:
    if options.host not in LOOPBACK and options.token is None:
        raise ConfigError(
            f"--host {options.host}: whoever reaches it could start runs; set a token of 16 "
            "characters or more in KV_CACHE_SERVE__TOKEN, or leave --host out"
        )
    if options.token is not None and (len(options.token) < 16 or not options.token.isascii()):
        raise ConfigError("--token must be 16 ASCII characters or more; make a longer one")


def _results(name: str) -> Path:
    path = Path(name).expanduser()
    try:
        path.mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=path).close()
    except OSError as error:
        reason = os_reason(error)
        raise PlaceError(
            f"--results {name}: it cannot be written to ({reason}); name another folder"
        ) from None
    return path.resolve()


def _folder(name: str) -> Path:
    path = Path(name).expanduser()
    if not path.is_dir():
        raise PlaceError(f"--folder {name}: there is no such folder; name one that exists")
    return path.resolve()


def _bound(options: ServeOptions) -> socket.socket:
    family, address = address_of("", options.host, options.port)
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen(256)
    except OSError as error:
        bound.close()
        why = why_not_listening("", options.host, options.port, error)
        raise PlaceError(why) from None
    return bound


class Bounded(H11Protocol):
    """A connection that says nothing ends after a while, and sooner where there are many: it keeps
    nobody out."""

    _silent: "dict[Bounded, asyncio.TimerHandle]" = {}  # noqa: RUF012  the oldest first, of all

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.transport.is_closing():
            self._wait()

    def _wait(self) -> None:
        self._silent[self] = self.loop.call_later(SILENT_S, self._end)
        if len(self._silent) > MOST_SILENT:
            next(iter(self._silent))._end()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:  # a head was read
            self._heard()

    def connection_lost(self, exc: Exception | None) -> None:
        self._heard()
        super().connection_lost(exc)

    def _heard(self) -> None:
        timer = self._silent.pop(self, None)
        if timer is not None:
            timer.cancel()

    def _end(self) -> None:
        self._heard()
        self.transport.abort()
