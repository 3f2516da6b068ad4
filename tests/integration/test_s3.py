"""Whole runs on object storage: a real server, from the first probe to the last deletion."""

import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import BaseRequestHandler, ThreadingTCPServer
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

import orjson
import pytest

from kv_cache.bench.owner import Host, this_host
from kv_cache.bench.run_prefix import RUNS, RunPrefix, check_bucket
from kv_cache.core.effect import CopyRef
from kv_cache.core.errors import PlaceError, StoreError
from kv_cache.core.units import MIB
from kv_cache.installing import install_hint
from kv_cache.tiers.buffers import BufferPool
from kv_cache.tiers.objects import Client, ObjectPlace, ObjectStore
from kv_cache.tiers.payload import MISMATCH
from tests import s3server
from tests.cli import PATIENCE_S, ROOT, SMALL, Ran, finish, run, start
from tests.passports import names, status
from tests.s3server import ACCESS_KEY, SECRET_KEY, S3Server
from tests.stores import copy, reason

s3, keys = s3server.s3_server, s3server.s3_keys
FAST = [*SMALL, "--output=R.json", "--semantics=serving", "--block-tokens=64", "--no-progress"]
FEW = ["--cpu-mem-gb=0", "--num-users=2"]


def on(server: S3Server, prefix: str) -> list[str]:
    return [*FAST, *FEW, f"--cache-dir={server.url(prefix)}", f"--s3-endpoint={server.endpoint}"]


def sound(ran: Ran) -> None:
    assert ran.code == 0, ran.err
    assert ran.own["status"] == "finished"
    assert ran.own["failed_operations"] == []


# --- what a run does ------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["standard", "prefill-only", "decode-only"])
def test_every_mode_runs_is_verified_and_leaves_nothing(
    mode: str, s3: S3Server, tmp_path: Path
) -> None:
    flags = [] if mode == "standard" else [f"--{mode}"]
    before = s3.traffic()
    ran = run(tmp_path, *on(s3, f"mode/{mode}"), "--max-requests=10", *flags)
    after = s3.traffic()
    sound(ran)
    own = ran.own
    assert s3.objects("mode") == {}
    assert own["verification"]["objects"] > 0 or mode == "prefill-only"
    store = own["tiers"]["storage"]["store"]
    moved = {
        "read": after["sent"] - before["sent"],
        "write": after["received"] - before["received"],
    }
    for kind in ("read", "write"):
        row = own["reconciliation"][kind]
        aside = 512 * 4096 + 64 if kind == "read" else 4096  # the sample of pages, owner and probe
        assert row["claimed_bytes"] <= moved[kind] <= 1.01 * row["claimed_bytes"] + aside
        assert row["process_bytes"] is row["device_bytes"] is None
    assert store["requests"]["put"] > 0
    assert store["endpoint"] == f"127.0.0.1:{s3.port}"
    assert own["environment"]["drives"][0]["object_store"]["bucket"] == s3.bucket
    names(own)
    of_files = ("V1", "V3", "V4", "V5", "V19", "V23")
    assert {status(own, number) for number in of_files} == {"not-applicable"}
    assert "s3" in ran.out


def test_the_result_is_as_its_run_left_it_and_no_output_has_a_key(
    s3: S3Server, tmp_path: Path
) -> None:
    ran = run(
        tmp_path, *on(s3, "secret"), "--max-requests=10", "--results-dir=results",
        "--latency-dump=dump.jsonl", "--record=trace.jsonl", "--log-level=DEBUG",
    )  # fmt: skip
    sound(ran)
    checked = run(tmp_path, "verify", "R.json")
    assert checked.code == 0, checked.out + checked.err
    texts = [ran.out, ran.err, *(p.read_text(errors="replace") for p in files(tmp_path))]
    assert len(texts) > 6
    for text in texts:
        assert SECRET_KEY not in text
        assert ACCESS_KEY not in text


def files(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if path.is_file()]


def test_what_a_full_bucket_evicts_is_deleted_and_kept_objects_stay(
    s3: S3Server, tmp_path: Path
) -> None:
    ran = run(
        tmp_path, *on(s3, "kept"), "--max-requests=16", "--storage-capacity-gb=0.02", "--keep-cache"
    )
    sound(ran)
    held = s3.objects(f"kept/{RUNS}")
    owners = [key for key in held if key.endswith("/OWNER.json")]
    left = sum(nbytes for key, nbytes in held.items() if key not in owners)
    assert 0 < left <= 0.02 * 2**30
    assert left == ran.own["tiers"]["storage"]["used_bytes"]
    assert ran.own["tiers"]["storage"]["store"]["requests"]["delete"] > 0
    assert len(owners) == 1


def test_a_signal_ends_the_run_with_a_result_and_nothing_left(s3: S3Server, tmp_path: Path) -> None:
    process = start(tmp_path, [*on(s3, "signal"), "--duration=60"])
    while not s3.objects("signal"):
        time.sleep(0.1)
    time.sleep(1)
    process.send_signal(signal.SIGTERM)
    ran = finish(process, tmp_path)
    assert ran.code == 143
    assert ran.own["status"] == "interrupted"
    assert s3.objects("signal") == {}


# --- who owns what --------------------------------------------------------------------------------


def test_two_runs_in_one_prefix_do_not_meet_and_what_is_foreign_stays(s3: S3Server) -> None:
    import obstore

    obstore.put(s3.store(), "both/mine.txt", b"not of a run")
    first, second = (RunPrefix(s3.place("both"), run=name) for name in ("a", "b"))
    assert first.directory != second.directory
    obstore.put(s3.store(), f"both/{first.directory}/foreign", b"neither")
    first.close()
    first.close()
    left = set(s3.objects("both"))
    assert left == {
        "both/mine.txt", f"both/{first.directory}/foreign", f"both/{second.directory}/OWNER.json",
    }  # fmt: skip
    second.close()


def test_what_a_dead_run_of_this_machine_left_is_removed_and_no_other(s3: S3Server) -> None:
    import obstore

    def leave(name: str, **owner: object) -> None:
        record = {"program": "kv-cache", "pid": 2**22 - 1, "machine": this_host().key, **owner}
        base = f"dead/{RUNS}/{name}"
        obstore.put(s3.store(), f"{base}/OWNER.json", orjson.dumps(record))
        obstore.put(s3.store(), f"{base}/00/{0:016x}.kv", bytes(4096))

    leave("dead")
    leave("kept", kept=True)
    leave("elsewhere", machine="another/4026531836")
    leave("other-host", host="node7", boot_id="another", pid_namespace=4026531836)
    leave("no-owner", program="something else")
    RunPrefix(s3.place("dead"), run="next").close()
    assert {key.split("/")[2] for key in s3.objects("dead")} == {
        "kept", "elsewhere", "other-host", "no-owner",
    }  # fmt: skip
    RunPrefix(s3.place("dead"), run="last", reclaim="node7").close()
    assert {key.split("/")[2] for key in s3.objects("dead")} == {"kept", "elsewhere", "no-owner"}


def test_where_machines_cannot_be_told_apart_nothing_is_removed(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    import obstore

    key = f"untold/{RUNS}/other/00/{0:016x}.kv"
    owner = {"program": "kv-cache", "pid": 2**22 - 1, "machine": None}
    obstore.put(s3.store(), f"untold/{RUNS}/other/OWNER.json", orjson.dumps(owner))
    obstore.put(s3.store(), key, bytes(4096))
    nowhere = Host(name="here", machine_id=None, boot_id=None, pid_namespace=None)
    monkeypatch.setattr("kv_cache.bench.owner.this_host", lambda: nowhere)
    RunPrefix(s3.place("untold"), run="next").close()
    assert key in s3.objects("untold")


# --- objects in parts -----------------------------------------------------------------------------


def test_a_large_object_goes_in_parts_and_an_aborted_one_leaves_nothing(s3: S3Server) -> None:
    store = ObjectStore(Client(s3.place("parts")), "x")
    pool = BufferPool(2, 4 * MIB)
    buffer = pool.take()
    ref = copy(12 * MIB)
    for aborted in (True, False):
        sink = store.create(ref)
        for number in range(3):
            buffer.array[:] = number + 1  # what was given before must not change
            sink.write(number * 4 * MIB, buffer.view)
        if aborted:
            sink.abort()
            assert s3.objects("parts") == {}
            continue
        sink.commit()
    tap = store.open(ref)
    for number in range(3):
        tap.read(number * 4 * MIB, buffer.view)
        assert (buffer.array == number + 1).all()
    tap.close()
    counts = store.client.counts
    assert (counts["multipart"], counts["multipart_parts"]) == (2, 6)
    store.delete(ref)
    assert s3.objects("parts") == {}


def test_an_object_that_somebody_changed_or_removed_is_told(s3: S3Server) -> None:
    import obstore

    store = ObjectStore(Client(s3.place("changed")), "x")
    buffer = BufferPool(2, MIB).take()
    ref = copy(MIB)
    sink = store.create(ref)
    sink.write(0, buffer.view)
    sink.commit()
    obstore.put(s3.store(), store.key(ref), bytes(4096))
    tap = store.open(ref)
    assert reason(lambda: tap.read(0, buffer.view)) == "truncated"
    assert reason(lambda: tap.read(MIB // 2, buffer.view[:4096])) == "truncated"
    obstore.delete(s3.store(), store.key(ref))
    assert reason(lambda: tap.read(0, buffer.view)) == "vanished"
    store.delete(ref)


# --- before a run ---------------------------------------------------------------------------------


def refused(tmp_path: Path, *args: str) -> str:
    ran = run(tmp_path, *FAST, *args)
    assert ran.code == 2, ran.err
    assert {p.name for p in files(tmp_path)} == {"small.yaml"}
    last = ran.err.strip().splitlines()
    assert len(last) == 1, ran.err
    return last[0]


@contextmanager
def answering(status: int, code: str) -> Iterator[str]:
    """The flag of a server that has one answer for everybody, as S3's are."""

    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            body = (
                f"<Error><Code>{code}</Code><AWSAccessKeyId>{ACCESS_KEY}</AWSAccessKeyId></Error>"
            )
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"--s3-endpoint=http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_what_is_wrong_with_a_server_is_one_sentence_before_anything_is_written(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, endpoint = f"--cache-dir={s3.url('no')}", f"--s3-endpoint={s3.endpoint}"
    said = refused(tmp_path, url, "--s3-endpoint=http://127.0.0.1:1")
    assert "127.0.0.1:1 cannot be reached" in said
    with answering(404, "NoSuchBucket") as other:  # ours tells nobody but its owner
        assert "there is no such bucket; create it" in refused(tmp_path, url, other)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong-and-secret")
    said = refused(tmp_path, url, endpoint)
    assert "refuses these keys (SignatureDoesNotMatch)" in said
    assert "wrong-and-secret" not in said
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    assert "no keys for the object store" in refused(tmp_path, url, endpoint)


def test_without_the_library_the_line_that_installs_it_is_told(
    s3: S3Server, tmp_path: Path
) -> None:
    blocked = tmp_path.parent / "blocked" / "obstore"
    blocked.mkdir(parents=True)
    (blocked / "__init__.py").write_text("raise ImportError('not here')")
    args = [*FAST, f"--cache-dir={s3.url()}"]
    places = [str(blocked.parent), str(ROOT)]  # before wherever an editable install points to
    code = f"import sys; sys.path[:0] = {places!r}\n"
    code += f"import kv_cache.cli\nsys.exit(kv_cache.cli.main({args!r}))"
    (tmp_path / "small.yaml").write_text("{}")
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2, done.stderr
    assert install_hint("s3") in done.stderr


def test_a_server_that_never_answers_is_given_up(s3: S3Server) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        place = s3.place(timeout_s=0.5)
        silent_place = type(place)(
            bucket="bucket", prefix="", endpoint=f"http://127.0.0.1:{port}", timeout_s=0.5
        )
        with pytest.raises(PlaceError, match=r"did not answer within 0\.5 s"):
            check_bucket(silent_place)


def test_commands_for_devices_refuse_objects(tmp_path: Path) -> None:
    place = "--cache-dir=s3://bucket/a"
    for args in (["probe", place], ["precondition", *FAST, place]):
        ran = run(tmp_path, *args)
        assert ran.code == 2
        assert re.search("object store", ran.err)


# --- servers that go away -------------------------------------------------------------------------


@pytest.fixture(name="own", scope="module")
def own_server(tmp_path_factory: pytest.TempPathFactory) -> S3Server:
    """One that may be killed."""
    if (missing := s3server.missing()) is not None:
        pytest.skip(missing)
    server = S3Server(tmp_path_factory.mktemp("own"))
    server.start()
    return server


def test_a_bucket_that_vanishes_and_a_server_that_dies_end_in_a_result(
    own: S3Server, tmp_path: Path
) -> None:
    patient, store = (
        ObjectStore(Client(own.place("gone", timeout_s=seconds, retries=1)), "x")
        for seconds in (600.0, 2.0)
    )
    buffer = BufferPool(2, MIB).take()
    ref = copy(MIB)
    try:
        put(patient, ref, buffer.view)  # the server's first, for which it makes its volumes
        process = start(tmp_path, [*on(own, "dies"), "--duration=8"])
        while not any(key.endswith(".kv") for key in own.objects("dies")):
            time.sleep(0.1)
        own.remove_bucket(own.bucket)
        tap = patient.open(ref)
        assert reason(lambda: tap.read(0, buffer.view)) in ("vanished", "no-such-bucket")
    finally:
        own.kill()
    began = time.monotonic()
    assert reason(lambda: tap.read(0, buffer.view)) in ("unreachable", "connection-lost")
    assert reason(lambda: put(store, copy(MIB), buffer.view)) == "unreachable"
    assert time.monotonic() - began < PATIENCE_S
    ran = finish(process, tmp_path)
    assert ran.code == 0, ran.err
    reasons = {row["reason"] for row in ran.own["failed_operations"]}
    assert reasons & {"unreachable", "connection-lost", "vanished", "no-such-bucket"}
    assert MISMATCH not in reasons
    names(ran.own, V12="invalid")
    assert "could not all be removed" in ran.err
    assert json.dumps(ran.result).count(SECRET_KEY) == 0


def put(store: ObjectStore, ref: CopyRef, data: memoryview) -> None:
    sink = store.create(ref)
    try:
        sink.write(0, data)
        sink.commit()
    except StoreError:
        sink.abort()
        raise


@contextmanager
def slow_way(server: S3Server, bytes_per_second: float) -> Iterator[str]:
    """The endpoint of a way to the server on which all uploads together have this rate."""
    turn = threading.Lock()

    def carry(source: socket.socket, target: socket.socket, rate: float = 0) -> None:
        with suppress(OSError):
            while piece := source.recv(2**16):
                if rate:
                    with turn:
                        time.sleep(len(piece) / rate)
                target.sendall(piece)
            target.shutdown(socket.SHUT_WR)

    class Carrier(BaseRequestHandler):
        def handle(self) -> None:
            with socket.create_connection(("127.0.0.1", server.port)) as far:
                back = threading.Thread(target=carry, args=(far, self.request))
                back.start()
                carry(self.request, far, bytes_per_second)
                back.join()

    with ThreadingTCPServer(("127.0.0.1", 0), Carrier) as way:
        way.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**16)
        threading.Thread(target=way.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{way.server_address[1]}"
        finally:
            way.shutdown()


_IN_PARTS = """
io: {buffer_mib: 1, store_buffers: 32, threads: 16}
passport: {payload_pages: 16}
user_templates:
""" + "".join(
    f"  {name}: {{context_range: [200, 200], generation_range: [9, 9], think_time_range: [0, 0]}}\n"
    for name in ("chatbot", "coding", "document")
)


def test_parts_of_uploads_that_are_not_sent_as_the_window_closes_are_told_of(
    s3: S3Server, tmp_path: Path
) -> None:
    (tmp_path / "parts.yaml").write_text(_IN_PARTS)
    flags = [
        "--model=llama3.1-8b", "--prefill-only", "--gpu-mem-gb=0", "--cpu-mem-gb=0",
        "--storage-capacity-gb=4", "--num-users=6", "--generation-mode=none", "--duration=2",
        "--seed=3", "--no-progress", "--config=parts.yaml", "--output=R.json",
    ]  # fmt: skip
    with slow_way(s3, 10e6) as endpoint:
        place = [f"--cache-dir={s3.url('parts')}", f"--s3-endpoint={endpoint}"]
        ran = run(tmp_path, "run", *flags, *place)
    write = ran.own["passport"]["evidence"]["ledger"]["write"]
    came = write["window_calls_bytes"] - write["window_queued_bytes"]
    assert came < 4 * 10e6 < write["window_claimed_bytes"]  # in 2 s, or a little more
    names(ran.own, V6="suspect", V30="invalid", also=("V13", "V25", "V29"))
    assert "came to the other end of the sockets" in ran.out


def test_a_server_that_comes_back_is_asked_again(s3: S3Server) -> None:
    client, patient = (
        Client(s3.place("again", timeout_s=seconds, retries=8)) for seconds in (1.0, PATIENCE_S)
    )
    patient.put("again/first", b"")  # for which a new server makes its volumes
    s3.freeze()
    try:
        with pytest.raises(StoreError, match="timed-out"):
            client.put("again/x", b"x", again=False)
        threading.Timer(0.2, s3.thaw).start()
        patient.put("again/y", b"y")  # another key: what has timed out may still come
        assert patient.get("again/y") == b"y"
        patient.delete("again/y")
    finally:
        s3.thaw()


PAGES = [["busy/runs/a/00", "busy/runs/a/01"], ["busy/runs/a/02", "busy/runs/a/kv-cache-run.json"]]


class Lister(BaseHTTPRequestHandler):
    """An S3 server that lists two pages of keys; of its first answers some go wrong."""

    wrong: ClassVar[list[str | None]] = []

    def do_GET(self) -> None:
        how = self.wrong.pop(0) if self.wrong else None
        query = parse_qs(urlsplit(self.path).query)
        after = query.get("start-after", [""])[0]
        left = [[key for key in page if key > after] for page in PAGES]
        keys = left["continuation-token" in query]
        more = "<NextContinuationToken>2</NextContinuationToken>" if keys is left[0] else ""
        entries = "".join(
            f"<Contents><Key>{key}</Key><LastModified>2026-07-01T00:00:00.000Z</LastModified>"
            f"<ETag>1</ETag><Size>1</Size></Contents>"
            for key in keys
        )
        truncated = str(bool(more)).lower()
        body = (
            "<ListBucketResult><Name>busy-bucket</Name><Prefix></Prefix><MaxKeys>2</MaxKeys>"
            f"<KeyCount>{len(keys)}</KeyCount><IsTruncated>{truncated}</IsTruncated>{more}{entries}"
            "</ListBucketResult>"
        ).encode()
        if how == "unfinished":
            body = body[: len(body) // 2]
        self.send_response(503 if how == "busy" else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[:60] if how == "cut" else body)
        self.close_connection = how == "cut"

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.mark.parametrize("wrong", ["busy", "cut", "unfinished"])
@pytest.mark.parametrize("before", [0, 1])
def test_a_list_that_goes_wrong_once_has_all_objects_all_the_same(
    wrong: str, before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was taken for the list of an empty prefix: the objects of a run stayed, and only the file
    that says whose they are was removed."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    with ThreadingHTTPServer(("127.0.0.1", 0), Lister) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            client = Client(
                ObjectPlace(
                    bucket="busy-bucket",
                    prefix="busy",
                    endpoint=f"http://127.0.0.1:{server.server_port}",
                )
            )
            Lister.wrong[:] = [*[None] * before, wrong]
            listed = [entry["path"] for chunk in client.list("busy") for entry in chunk]
        finally:
            server.shutdown()
    assert listed == [key for page in PAGES for key in page]


class Busy(BaseHTTPRequestHandler):
    """An S3 server that sends the first two requests away, and keeps nothing."""

    requests: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.requests.append(self.path)
        busy = len(self.requests) <= 2
        body = b"<Error><Code>SlowDown</Code></Error>" if busy else b"here"
        self.send_response(503 if busy else 200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", '"1"')
        self.send_header("Last-Modified", "Wed, 01 Jul 2026 00:00:00 GMT")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


def test_a_request_that_is_tried_again_is_counted_once_each_time_it_is_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    Busy.requests.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), Busy) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            place = ObjectPlace(
                bucket="busy-bucket",
                prefix="",
                endpoint=f"http://127.0.0.1:{server.server_port}",
                retries=4,
            )
            client = Client(place)
            assert client.get("x") == b"here"
            assert (client.counts, len(Busy.requests)) == ({"get": 3, "retries": 2}, 3)
            assert client.get("x") == b"here"
            assert (client.counts, len(Busy.requests)) == ({"get": 4, "retries": 2}, 4)
        finally:
            server.shutdown()
