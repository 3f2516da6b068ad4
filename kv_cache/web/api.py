"""The routes: each reads what was asked, calls what the command line calls, and answers."""

import asyncio
import mimetypes
import os
import re
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import orjson
from anyio import to_thread
from msgspec import Struct, structs
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from kv_cache import __version__
from kv_cache.app.documents import read_any
from kv_cache.bench.device_mark import devices_of
from kv_cache.config.root import Config, options
from kv_cache.config.schema import print_config, to_mapping
from kv_cache.config.unread import value_at
from kv_cache.core.errors import ConfigError, PlaceError, UsageError, did_you_mean, os_reason
from kv_cache.result.metrics import Json
from kv_cache.view.page import page
from kv_cache.web.classes import COMMANDS_NEVER, Folders, samples
from kv_cache.web.commands import Values, WebCommand, shown
from kv_cache.web.feed import Feeds
from kv_cache.web.guard import (
    COOKIE,
    MOST_UPLOAD_BYTES,
    UPLOADS,
    Guard,
    Refusal,
    TooLargeError,
    too_large,
)
from kv_cache.web.index import FILTERS, Index, Notes
from kv_cache.web.jobs import (
    LOG,
    OUT,
    OUTPUT,
    BusyError,
    Jobs,
    JobState,
    WebRun,
    metrics_url,
    refusal,
)
from kv_cache.web.openapi import openapi
from kv_cache.web.parts import part_of
from kv_cache.web.scenario_files import DrawnScenario, write_scenario
from kv_cache.web.trends import trend_of

UPLOAD_FOLDER = "uploads"
MOST_COMPARED = 6
_CHECK_S = 120.0
_LOOK_S = 10.0
_NAME = re.compile(r"[\w.+-]{1,120}")
_WHOLE = re.compile(r"[0-9]{1,9}")
_WRITTEN = ".tmp"  # of a file that gets its name when all of it is there
_TAKEN = ("", ".yaml", ".yml")
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; frame-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
Handler = Callable[[Request], Awaitable[Response]]


class Wanted(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A command with what was filled in, by the options' paths."""

    command: str
    values: dict[str, bool | str | list[str]] = {}


class Site(Struct, frozen=True, kw_only=True):
    """What the routes share."""

    results: Path
    folders: Folders
    commands: Mapping[str, WebCommand]
    jobs: Jobs
    feeds: Feeds
    index: Index
    guard: Sequence[Any] = ()


# --- what is asked ---------------------------------------------------------------------------


async def _read(request: Request, kind: Any) -> Any:
    """Return the JSON of a request as a `kind`. Raises ConfigError."""
    try:
        return msgspec.json.decode(await request.body(), type=kind)
    except msgspec.MsgspecError as error:
        raise ConfigError(
            f"the body of {request.method} {request.url.path} is not as it must be: {error}; see "
            "/openapi.json"
        ) from None


def _command(site: Site, name: str) -> WebCommand:
    command = site.commands.get(name)
    if command is not None:
        return command
    if name in COMMANDS_NEVER:
        raise ConfigError(f"{name} is not started from the page: {COMMANDS_NEVER[name]}")
    raise ConfigError(f"there is no command {name!r}.{did_you_mean(name, site.commands)}")


class Ready(Struct, frozen=True):
    """Words that may be started, with what they mean."""

    command: WebCommand
    words: Sequence[str]
    config: Config | None
    places: Values
    devices: Mapping[Path, Sequence[str]]


def _ready(site: Site, wanted: Wanted, folder: Path) -> Ready:
    """Return the words of a command, checked as far as that needs no process. Raises UsageError."""
    command = _command(site, wanted.command)
    places = command.places(wanted.values, folder)
    words = command.words(wanted.values, structs.replace(site.folders, run_folder=folder), places)
    folders = Folders((*site.folders.roots, folder), site.folders.uploads)
    config = command.checked(words, folders, places)
    used = command.places_used(wanted.values, config)
    devices = {place: devices_of(place) for place in used}
    return Ready(command, words, config, places, devices)


async def _looked_at(site: Site, wanted: Wanted, folder: Path) -> Ready:
    """Return `_ready`, which looks at places that may be on a device that hangs: the thread is
    left behind then. Raises UsageError."""
    try:
        async with asyncio.timeout(_LOOK_S):
            look = partial(_ready, site, wanted, folder)
            return await to_thread.run_sync(look, abandon_on_cancel=True)
    except TimeoutError:
        raise PlaceError(
            f"a place that is named has not answered for {_LOOK_S:g} s; its device may hang: look "
            "at it, or name another place"
        ) from None


# --- runs ------------------------------------------------------------------------------------


async def _commands(site: Site, request: Request) -> Response:
    rows = [{"command": c.name, "about": c.about.strip().split("\n\n")[0], "measures": c.measures}
            for c in site.commands.values()]  # fmt: skip
    return _json({
        "version": __version__, "commands": rows, "never": COMMANDS_NEVER,
        "folders": list(map(str, site.folders.roots)), "results": str(site.results),
        "most_upload_bytes": MOST_UPLOAD_BYTES, "traces": _traces(site),
    })  # fmt: skip


async def _form(site: Site, request: Request) -> Response:
    return _json(_command(site, request.path_params["name"]).form())


async def _check(site: Site, request: Request) -> Response:
    """The command line of what is filled in, its configuration, and with `?dry_run=1` what the
    command itself says that it would do; or why it would refuse, which is an answer here."""
    wanted = await _read(request, Wanted)
    name = site.jobs.new_id(wanted.command)
    try:
        ready = await _looked_at(site, wanted, site.jobs.folder(name) / OUT)
        planned = ""
        if request.query_params.get("dry_run") and ready.command.has_dry_run:
            with TemporaryDirectory(prefix="kv-cache-check-") as empty:  # it must be there
                there = await _looked_at(site, wanted, Path(empty))
                planned = await _planned(there.words)
            planned = planned.replace(empty, str(site.jobs.folder(name) / OUT))
    except UsageError as error:
        return _json({"refusal": {"kind": _kind(error), "sentence": str(error)}})
    config = ready.config
    return _json({
        "refusal": None,
        "line": shown(ready.words),
        "words": ready.words,
        "yaml": "" if config is None else print_config(config),
        "effective": _effective(ready),
        "planned": planned,
        "dry_run": ready.command.has_dry_run,
    })  # fmt: skip


def _effective(ready: Ready) -> Json:
    """The value of each option, as the form shows what is left as it is: those of a run, and the
    files that the server has written into the run's own folder."""
    config = ready.config
    values = {} if config is None else {p: to_mapping(value_at(config, p)) for p in options()}
    return values | {path: Path(str(text)).name for path, text in ready.places.items()}


async def _planned(words: Sequence[str]) -> str:
    """What the command says with --dry-run. Raises ConfigError with its refusal."""
    process = await asyncio.create_subprocess_exec(
        *Jobs.program(), *words, "--dry-run",
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE, env=Jobs.environment(),
    )  # fmt: skip
    try:
        async with asyncio.timeout(_CHECK_S):
            output, log = await process.communicate()
    except TimeoutError:
        process.kill()
        raise ConfigError(f"the check took more than {_CHECK_S:g} s and was given up") from None
    if process.returncode:
        lines = log.decode(errors="replace").splitlines()
        raise ConfigError(refusal(lines) or f"the check ended with code {process.returncode}")
    return output.decode(errors="replace")


async def _start(site: Site, request: Request) -> Response:
    wanted = await _read(request, Wanted)
    name = site.jobs.new_id(_command(site, wanted.command).name)
    ready = await _looked_at(site, wanted, site.jobs.folder(name) / OUT)
    job = await run_in_threadpool(site.jobs.start, name, ready.words, ready.devices)
    return _json(_job(site, job), 201)


async def _runs(site: Site, request: Request) -> Response:
    return _json({"runs": [_job(site, job) for job in site.jobs.all()[:200]]})


async def _run(site: Site, request: Request) -> Response:
    job = _job_of(site, request)
    fresh = bool(request.query_params.get("fresh"))
    known = _job(site, job)  # before its results: a run that is called ended has them
    rows = await run_in_threadpool(_results_of, site, job, known["state"], fresh=fresh)
    texts = {"output": site.jobs.tail(job, OUTPUT), "log": site.jobs.tail(job, LOG)}
    return _json({**known, **texts, "results": rows, "files": site.jobs.files(job)})


def _results_of(site: Site, job: WebRun, state: JobState, *, fresh: bool = False) -> list[Json]:
    """What is listed of a run; of one that goes on as it was, or `fresh`, which reads the folder
    beside what is measured."""
    if fresh or state is not JobState.RUNNING:
        site.index.refresh(at_once=True)
    return site.index.below(job.id)


def _job_of(site: Site, request: Request) -> WebRun:
    return site.jobs.get(request.path_params["id"])


def _job(site: Site, job: WebRun) -> Json:
    state = site.jobs.state(job)
    why = None if state is not JobState.FAILED else refusal(site.jobs.tail(job))
    return {"id": job.id, "command": job.command, "line": shown(job.words), "state": state,
            "exit_code": job.exit_code, "refusal": why, "started_unix_s": job.started_unix_s,
            "ended_unix_s": job.ended_unix_s, "devices": job.devices, "pid": job.pid,
            "metrics": _metrics(site, job, state)}  # fmt: skip


def _metrics(site: Site, job: WebRun, state: JobState) -> str | None:
    """The address at which a dashboard of one's own finds the run's numbers."""
    port = site.jobs.metrics_port(job) if state is JobState.RUNNING else None
    return None if port is None else metrics_url(port)


async def _stop(site: Site, request: Request) -> Response:
    """End a run as Ctrl-C does: its result is kept."""
    job = _job_of(site, request)
    site.jobs.stop(job)
    return _json(_job(site, job))


async def _cancel(site: Site, request: Request) -> Response:
    """End a run and remove what it wrote."""
    job = _job_of(site, request)
    site.jobs.stop(job, cancel=True)
    return _json(_job(site, job))


async def _file(site: Site, request: Request) -> Response:
    """A file that a run left, to be kept: event logs, series, what it printed."""
    path = request.path_params["path"]
    folder = site.jobs.folder(site.jobs.get(path.partition("/")[0]).id)
    file = Path(os.path.realpath(site.results / path))
    if not file.is_relative_to(folder):
        raise KeyError(path)
    try:
        return await run_in_threadpool(part_of, file, request.headers.get("range"))
    except (FileNotFoundError, IsADirectoryError):
        if file.suffix == _WRITTEN:  # it has its name by now
            return Response(status_code=204)
        raise KeyError(path) from None


async def _result_of_run(site: Site, request: Request) -> Response:
    job = _job_of(site, request)
    state = site.jobs.state(job)
    rows = await run_in_threadpool(_results_of, site, job, state)
    if not rows:
        raise UsageError(f"run {job.id} has no result; its state is {state}")
    document = await run_in_threadpool(read_any, site.results / rows[0]["path"])
    return _json(document)


class _Events(StreamingResponse):
    """Events until the run ends or the reader goes; then `left` is closed."""

    def __init__(self, lines: AsyncIterator[bytes], left: ExitStack) -> None:
        headers = {"Cache-Control": "no-store", "Content-Encoding": "identity"}
        super().__init__(lines, media_type="text/event-stream", headers=headers)
        self._left = left

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._left:
            await super().__call__(scope, receive, send)


async def _events(site: Site, request: Request) -> Response:
    """One event a second until the run ends; `Last-Event-ID` is where a reader left off."""
    left = ExitStack()
    feed = left.enter_context(site.feeds.watched(_job_of(site, request)))
    last = request.headers.get("last-event-id", "0")
    events = feed.watch(int(last) if _WHOLE.fullmatch(last) else 0)

    async def lines() -> AsyncIterator[bytes]:
        async for number, data in events:
            yield b"id: %d\ndata: %b\n\n" % (number, data)
        yield b"event: end\ndata: {}\n\n"

    return _Events(lines(), left)


# --- results ---------------------------------------------------------------------------------


async def _results(site: Site, request: Request) -> Response:
    """The list as it is known now; what has changed is read beside."""
    asked_for = request.query_params
    wanted = {n: asked_for[n] for n in (*FILTERS, "since", "until", "text") if asked_for.get(n)}
    limit, offset = (
        _number(asked_for.get(n, d), n) for n, d in (("limit", "100"), ("offset", "0"))
    )
    fresh = bool(asked_for.get("fresh"))
    refreshing = asyncio.create_task(run_in_threadpool(site.index.refresh, at_once=fresh))
    _TASKS.add(refreshing)
    refreshing.add_done_callback(_TASKS.discard)
    if fresh:
        await refreshing
    else:
        await asyncio.wait({refreshing}, timeout=0.2)
    rows, count = await run_in_threadpool(site.index.rows, wanted, limit, offset)
    choices = await run_in_threadpool(site.index.choices)
    progress = site.index.progress
    return _json({"results": rows, "count": count, "choices": choices,
                  "indexing": {"done": progress.done, "total": progress.total}})  # fmt: skip


_TASKS: set["asyncio.Task[None]"] = set()  # asyncio itself keeps none


def _number(text: str, name: str) -> int:
    if not _WHOLE.fullmatch(text):
        raise ConfigError(f"{name} is {text!r}; it must be a whole number")
    return int(text)


async def _document(site: Site, request: Request) -> Response:
    file = site.index.file(request.path_params["path"])
    return _json(await run_in_threadpool(read_any, file))


async def _page(site: Site, request: Request) -> Response:
    """One or more results as the page that `report` writes, which needs nothing else."""
    paths = request.query_params.getlist("result")
    if not 1 <= len(paths) <= MOST_COMPARED:
        raise ConfigError(f"{len(paths)} results are named; a page is of 1 to {MOST_COMPARED}")
    html = await run_in_threadpool(_rendered, site, paths)
    name = "comparison" if len(paths) > 1 else re.sub("[^A-Za-z0-9]+", "-", paths[0]).strip("-")
    saved = {"Content-Disposition": f'attachment; filename="{name}.html"'}
    return Response(html, media_type="text/html",
                    headers=saved if request.query_params.get("save") else None)  # fmt: skip


def _rendered(site: Site, paths: Sequence[str]) -> str:
    found_in = [site.index.file(path) for path in paths]
    return page([read_any(file) for file in found_in], list(paths))


async def _trend(site: Site, request: Request) -> Response:
    """The runs of one configuration on one device, and whether its storage changed between any two
    of them."""
    rows = await run_in_threadpool(site.index.alike, request.query_params.get("result", ""))
    if not rows:
        raise UsageError("this result has no trend: it has no headline, or is not in the list")
    trend = await run_in_threadpool(trend_of, rows, site.results)
    pair = [str(site.results / path) for path in trend["pair"]]
    return _json({"rows": rows, **trend, "line": shown(["compare", *pair]) if pair else ""})


async def _notes(site: Site, request: Request) -> Response:
    notes = await _read(request, Notes)
    if len(notes.label) > 200 or len(notes.note) > 10_000:
        raise ConfigError("a label has at most 200 characters and a note 10,000; shorten it")
    await run_in_threadpool(site.index.annotate, request.path_params["path"], notes)
    return _json(msgspec.to_builtins(notes))


# --- traces ----------------------------------------------------------------------------------


def _traces(site: Site) -> list[str]:
    folder = site.results / UPLOAD_FOLDER
    uploaded = sorted(map(str, folder.glob("[!.]*")))  # what is still on its way has a dot
    return [*uploaded, *samples()]


async def _upload(site: Site, request: Request) -> Response:
    """Keep a trace below the folder of results, under a name that is not taken."""
    name = request.query_params.get("name", "")
    if not _NAME.fullmatch(name) or name.startswith(".") or Path(name).suffix in _TAKEN:
        raise ConfigError(
            f"the name {name[:120]!r} is no trace's: letters, digits, dots and dashes, with the "
            "ending of its format (.jsonl, .csv, .json, .txt, .gz ...)"
        )
    folder = site.results / UPLOAD_FOLDER
    folder.mkdir(exist_ok=True)
    target = folder / name
    part = folder / f".{secrets.token_hex(8)}.part"
    try:
        if target.exists():
            raise FileExistsError
        with part.open("xb") as file:
            async for data in request.stream():
                await run_in_threadpool(file.write, data)
        os.link(part, target)
    except FileExistsError:
        raise ConfigError(f"a trace {name!r} is there already; give it another name") from None
    finally:
        part.unlink(missing_ok=True)
    return _json({"path": str(target), "bytes": target.stat().st_size}, 201)


async def _scenario(site: Site, request: Request) -> Response:
    """Write a scenario with instances of its own, made of a known one, below the results."""
    drawn = await _read(request, DrawnScenario)
    target = await run_in_threadpool(write_scenario, site.results, site.folders, drawn)
    return _json({"path": str(target), "yaml": target.read_text()}, 201)


# --- the page --------------------------------------------------------------------------------


async def _static(site: Site, request: Request) -> Response:
    name = request.path_params.get("name", "index.html")
    return _asset(name)


def _asset(name: str) -> Response:
    if not _NAME.fullmatch(name):
        raise KeyError(name)
    places = ("kv_cache.web", "page"), ("kv_cache.view.page", "assets")
    for package, folder in places:
        file = files(package).joinpath(folder, name)
        if file.is_file():
            kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
            headers = {"Content-Security-Policy": _POLICY, "Cache-Control": "no-cache"}
            return Response(file.read_bytes(), media_type=kind, headers=headers)
    raise KeyError(name)


async def _login(site: Site, request: Request) -> Response:
    token = await _read(request, str)
    (guard,) = site.guard
    if not guard.knows(token):
        return _refused(Refusal(401, "no-token", "that is not the token that serve was given"))
    response = _json({"ok": True})
    response.set_cookie(COOKIE, token, httponly=True, samesite="strict")
    return response


async def _openapi(site: Site, request: Request) -> Response:
    return _json(openapi(ROUTES, site.commands))


# --- answers ---------------------------------------------------------------------------------


def _json(value: Any, status: int = 200) -> Response:
    data = orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS)
    return Response(data, status, media_type="application/json")


def _refused(why: Refusal) -> Response:
    return _json({"error": {"kind": why.kind, "sentence": why.sentence}}, why.status)


def _kind(error: UsageError) -> str:
    return type(error).__name__.removesuffix("Error").lower()


async def _errors(handler: Callable[[Site, Request], Awaitable[Response]], site: Site,
                  request: Request) -> Response:  # fmt: skip
    """Answer with the sentence that the command line would print."""
    try:
        return await handler(site, request)
    except BusyError as error:
        return _refused(Refusal(409, "busy", str(error)))
    except UsageError as error:
        return _refused(Refusal(422, _kind(error), str(error)))
    except KeyError:
        return _refused(Refusal(404, "not-found", f"there is nothing at {request.url.path}"))
    except TooLargeError:
        bound = MOST_UPLOAD_BYTES if request.url.path == UPLOADS else 1 << 20
        return _refused(too_large(bound))
    except OSError as error:
        reason = os_reason(error)
        return _refused(Refusal(507, "place", f"{request.url.path}: {reason}; make room there"))
    except ClientDisconnect:
        return Response(status_code=400)


ROUTES: Sequence[tuple[str, str, Callable[[Site, Request], Awaitable[Response]], str]] = (
    ("GET", "/commands", _commands, "All commands, folders and traces"),
    ("GET", "/commands/{name}", _form, "The options of a command"),
    ("POST", "/check", _check, "The command line of what is filled in; ?dry_run=1: its plan"),
    ("POST", "/runs", _start, "Start a command"),
    ("GET", "/runs", _runs, "The latest 200 runs"),
    ("GET", "/runs/{id}", _run, "One run, with what it said and its results"),
    ("GET", "/runs/{id}/events", _events, "Server-sent events, one a second until it ends"),
    ("GET", "/runs/{id}/result", _result_of_run, "The result of a run that has ended"),
    ("GET", "/files/{path:path}", _file, "A file that a run left: {id}/out/..."),
    ("POST", "/runs/{id}/stop", _stop, "End a run as Ctrl-C does; its result is kept"),
    ("DELETE", "/runs/{id}", _cancel, "End a run and remove what it wrote"),
    ("GET", "/results", _results, "The results of the folder, filtered"),
    ("GET", "/results/{path:path}", _document, "The document of a result"),
    ("PUT", "/notes/{path:path}", _notes, "Label and note beside a result"),
    ("GET", "/page", _page, "Results as one self-contained page; ?result=PATH, up to six"),
    (
        "GET",
        "/trend",
        _trend,
        "Runs of one configuration on one device, and steps; ?result=PATH",
    ),
    ("POST", "/traces", _upload, "Upload a trace, at most 256 MiB; ?name=NAME"),
    ("POST", "/scenarios", _scenario, "Write a scenario with other instances; for sim"),
    ("POST", "/login", _login, "Exchange the token for a cookie"),
    ("GET", "/openapi.json", _openapi, "This document"),
)
"""Method, path, handler and what it is for: the routes and the OpenAPI document."""


def application(site: Site, guard: Callable[[Any], Guard]) -> Any:
    """Return the application with its guard before it."""
    routes = [
        Route(path, partial(_errors, handler, site), methods=[method])
        for method, path, handler, _ in ROUTES
    ]
    routes += [
        Route("/", partial(_errors, _static, site)),
        Route("/static/{name}", partial(_errors, _static, site)),
        Route("/{rest:path}", partial(_errors, _nothing, site)),
    ]
    app = Starlette(
        routes=routes, middleware=[Middleware(GZipMiddleware, minimum_size=2000, compresslevel=4)]
    )
    return guard(app)


async def _nothing(site: Site, request: Request) -> Response:
    raise KeyError(request.url.path)
