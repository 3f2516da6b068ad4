"""`verify`: an untouched result is intact; whatever is changed is named, and nothing crashes it."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kv_cache.cli.report import main as report
from kv_cache.cli.verify import main
from kv_cache.core.errors import UsageError
from kv_cache.core.text import as_json
from kv_cache.core.units import human_bytes
from kv_cache.result.chain import check, file_digest, fingerprint, seal
from kv_cache.result.derive import SCHEMA, derive
from kv_cache.result.run import plain, read_run
from kv_cache.result.side_files import RECORDS
from kv_cache.result.verify import recheck
from tests.cli import SMALL, anything, finish, run, small, start
from tests.unit.test_passport import leaves, put

Document = dict[str, Any]
Say = tuple[int, str]


@pytest.fixture(scope="module")
def run_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real run with its records."""
    cwd = tmp_path_factory.mktemp("run")
    ran = small(cwd, "--max-requests=60", "--results-dir=runs", "--records")
    assert ran.code == 0, ran.err
    (directory,) = (cwd / "runs").iterdir()
    return directory


def read(directory: Path) -> Document:
    document: Document = orjson.loads((directory / "result.json").read_bytes())
    return document


def write(directory: Path, document: Document) -> None:
    """With hashes that fit, as somebody would who knows the program."""
    document["kv_cache"].pop("chain", None)
    digests = {name: file_digest(directory / name) for name in RECORDS}
    (directory / "result.json").write_bytes(as_json(seal(document, digests)))


@pytest.fixture
def directory(run_directory: Path, tmp_path: Path) -> Path:
    """A copy to do things to."""
    return Path(shutil.copytree(run_directory, tmp_path / "copy"))


@pytest.fixture
def verify(capsys: pytest.CaptureFixture[str]) -> Callable[..., Say]:
    def call(*args: object) -> Say:
        code = main([str(arg) for arg in args])
        return code, capsys.readouterr().out

    return call


# --- untouched -------------------------------------------------------------------------------


def test_an_untouched_run_is_intact(directory: Path, verify: Callable[..., Say]) -> None:
    code, out = verify(directory)
    assert code == 0, out
    assert "INTACT. Nothing was changed, and all " in out
    assert "files        config.yaml, environment.json, requests.jsonl, transfers.jsonl" in out
    assert f"fingerprint  {fingerprint(read(directory))}" in out
    assert f"verdict      {read(directory)['kv_cache']['passport']['verdict']}" in out
    assert verify(directory / "result.json")[0] == 0


def test_a_copy_without_its_records_is_intact_too(
    directory: Path, tmp_path: Path, verify: Callable[..., Say]
) -> None:
    shutil.copy(directory / "result.json", tmp_path / "R.json")
    code, out = verify(tmp_path / "R.json")
    assert code == 0, out
    assert "name the run's directory" in out


@pytest.mark.parametrize(
    "more", [["--drain=2"], ["--drain=0"], ["--virtual-time", "--drain=0", "--write-behind"]]
)
def test_a_run_whose_window_closed_over_operations_is_intact_with_its_records(
    more: list[str], tmp_path: Path, verify: Callable[..., Say]
) -> None:
    """Of what is in flight then the result has the ages."""
    ran = small(tmp_path, "--duration=1.5", "--num-users=16", "--cpu-mem-gb=0",
                "--results-dir=runs", "--records", *more)  # fmt: skip
    assert ran.code == 0, ran.err
    (directory,) = (tmp_path / "runs").iterdir()
    document = read(directory)
    rows = document["kv_cache"]["operations"]
    late = [row for row in rows if "in_flight" in row["histogram_total"]]
    assert late
    code, out = verify(directory)
    assert code == 0, out
    if "--virtual-time" in more:  # whose drain cut operations off: they have no record
        return
    del late[0]["histogram_total"]["in_flight"]
    write(directory, document)
    code, out = verify(directory)
    assert code == 2
    assert "in_flight is not what transfers.jsonl gives" in out


def test_the_answer_as_json(directory: Path, verify: Callable[..., Say]) -> None:
    code, out = verify(directory, "--json")
    answer = json.loads(out)
    assert (code, answer["intact"], answer["changed"], answer["deviations"]) == (0, True, [], [])
    assert answer["fingerprint"] == fingerprint(read(directory))
    assert answer["verdict"] == read(directory)["kv_cache"]["passport"]["verdict"]


def test_a_fingerprint_that_was_noted_tells_a_result_made_anew(
    directory: Path, verify: Callable[..., Say]
) -> None:
    noted = fingerprint(read(directory))
    assert verify(directory, "--fingerprint", noted)[0] == 0
    document = read(directory)
    document["kv_cache"]["started_utc"] = "2020-01-01T00:00:00+00:00"
    write(directory, document)
    assert verify(directory)[0] == 0  # it agrees with itself
    code, out = verify(directory, "--fingerprint", noted)
    assert (code, "changed      fingerprint is not " in out) == (2, True)


def test_a_signature_by_a_key_of_ones_own_tells_a_result_made_anew(directory: Path) -> None:
    if shutil.which("ssh-keygen") is None:
        pytest.skip("no ssh-keygen")

    def keygen(*words: str, data: bytes | None = None) -> int:
        command = ["ssh-keygen", *words]
        return subprocess.run(command, cwd=directory, input=data, capture_output=True).returncode

    assert keygen("-q", "-t", "ed25519", "-N", "", "-f", "key") == 0
    (directory / "signers").write_text(f"me {(directory / 'key.pub').read_text()}")
    assert keygen("-Y", "sign", "-f", "key", "-n", "kv-cache", "result.json") == 0
    check = ("-Y", "verify", "-f", "signers", "-I", "me", "-n", "kv-cache", "-s", "result.json.sig")
    assert keygen(*check, data=(directory / "result.json").read_bytes()) == 0
    document = read(directory)
    document["kv_cache"]["started_utc"] = "2020-01-01T00:00:00+00:00"
    write(directory, document)
    assert keygen(*check, data=(directory / "result.json").read_bytes()) != 0


def test_a_window_that_was_quartered_holds_more_time_than_there_is(
    tmp_path: Path, verify: Callable[..., Say]
) -> None:
    """Every rate is four times what it was, and all of the file made anew from what it says was
    counted. A busy machine may read the counters seconds late: they are of more than this."""
    document = small(tmp_path, "--max-requests=0", "--duration=6").result
    ends = document["kv_cache"]["phases_ns"]
    ends["measure_end"] = ends["measure_start"] + 1_500_000_000
    document["kv_cache"]["config"]["run"]["duration_s"] = 1.5
    faster = derive(read_run(document))
    (tmp_path / "quartered.json").write_bytes(as_json(seal(faster, {})))
    code, out = verify(tmp_path / "quartered.json")
    assert code == 0, out  # it agrees with itself
    assert "verdict      valid" not in out
    assert "the window was longer than is said" in out


def test_a_run_that_was_interrupted_cannot_be_made_a_finished_one(tmp_path: Path) -> None:
    """Stopped where it looked best, and made anew from what it says was counted."""
    process = start(
        tmp_path, [*SMALL, "--cache-dir=cache", "--output=R.json", "--max-requests=0",
                   "--duration=60"]
    )  # fmt: skip
    while process.poll() is None and not anything(tmp_path / "cache", "*/*/[0-9a-f]*.kv", 3):
        time.sleep(0.1)
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    document = finish(process, tmp_path).result
    assert recheck(document) == []
    own = document["kv_cache"]
    assert own["status"] == "interrupted"
    own["status"] = "finished"
    own["passport"]["evidence"]["completeness"]["interrupted"] = None
    sentences = recheck(plain(derive(read_run(document))))
    assert len(sentences) == 1
    assert "ended otherwise than at --duration 60" in sentences[0]


def test_another_formatting_changes_nothing(directory: Path, verify: Callable[..., Say]) -> None:
    document = read(directory)
    (directory / "result.json").write_text(json.dumps(document, indent=8, sort_keys=True))
    assert verify(directory)[0] == 0


# --- changed by hand: the chain names it -----------------------------------------------------

EDITS: Mapping[str, tuple[str, ...]] = {
    "config": ("kv_cache", "config", "run", "num_users"),
    "environment": ("kv_cache", "environment", "memory", "total_bytes"),
    "evidence": ("kv_cache", "passport", "evidence", "driver"),
    "verdict": ("kv_cache", "passport", "verdict"),
    "measurements": ("kv_cache", "tiers", "storage", "read", "bytes"),
    "reference keys": ("storage_throughput_mbps",),
}


@pytest.mark.parametrize("part", EDITS)
def test_a_part_that_was_edited_is_named(
    part: str, directory: Path, verify: Callable[..., Say]
) -> None:
    document = read(directory)
    put(document, EDITS[part], 12345)
    (directory / "result.json").write_bytes(as_json(document))
    code, out = verify(directory)
    assert code == 2
    assert f"changed      {part} was changed after the run" in out


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def _cut(path: Path) -> None:
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))


@pytest.mark.parametrize("name", RECORDS)
@pytest.mark.parametrize("what", [_flip, _cut, Path.unlink])
def test_records_that_were_changed_are_named(
    what: Callable[[Path], None], name: str, directory: Path, verify: Callable[..., Say]
) -> None:
    what(directory / name)
    code, out = verify(directory)
    assert (code, f"changed      {name}" in out) == (2, True), out


def test_files_beside_the_result_must_agree_with_it(
    directory: Path, verify: Callable[..., Say]
) -> None:
    config = directory / "config.yaml"
    config.write_text(config.read_text().replace("num_users: 4", "num_users: 400"))
    environment = json.loads((directory / "environment.json").read_text())
    environment["kernel"] = "6.6.6"
    (directory / "environment.json").write_text(json.dumps(environment))
    (directory / "requests.jsonl.partial").touch()
    code, out = verify(directory)
    assert code == 2
    assert "disagrees    config.yaml and the result differ in run.num_users" in out
    assert "disagrees    environment.json and the result differ in kernel" in out
    assert "requests.jsonl.partial" in out


# --- changed with hashes that fit: the numbers give it away ----------------------------------


def _row(own: Document) -> Document:
    rows: list[Document] = own["operations"]
    return next(r for r in rows if (r["tier"], r["operation"]) == ("storage", "read"))


HEADLINES: Mapping[str, Callable[[Document], Any]] = {
    "within_run.low": lambda head: head["within_run"].update(low=head["within_run"]["low"] / 2),
    "bytes_per_second": lambda head: head.update(bytes_per_second=7e9),
    "metric": lambda head: head.update(metric="storage.read.bytes_per_second"),
    "bytes says": lambda head: head.update(before_bytes=head["before_bytes"] + 1),
    "within_run.high": lambda head: head["batches"][3].__setitem__(1, 0),
    "batches.length": lambda head: head["batches"].pop(),
}


def test_sizes_of_objects_are_told_in_the_summary_and_in_both_reports(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ran = small(tmp_path, "--virtual-time", "--duration=5")
    row = ran.own["tiers"]["storage"]["write"]["object_bytes"]
    told = f"{row['objects']:,}"
    a_token = f"{ran.own['model']['bytes_per_token']:,} bytes a token, "
    assert re.search(f"\nobjects +{a_token}", ran.out)
    assert (
        report([str(tmp_path / "R.json"), "--format", "markdown", "-o", str(tmp_path / "R.md")])
        == 0
    )
    assert report([str(tmp_path / "R.json"), "-o", str(tmp_path / "R.html")]) == 0
    capsys.readouterr()
    assert f"| write | {told} | {human_bytes(row['min'])} |" in (tmp_path / "R.md").read_text()
    page = (tmp_path / "R.html").read_text()
    assert "Sizes of the objects that storage moved" in page
    assert "Objects from a size to below twice as much" in page


def test_the_headline_and_its_interval_are_computed_again(tmp_path: Path) -> None:
    ran = small(tmp_path, "--virtual-time", "--duration=30")
    assert ran.code == 0, ran.err
    document = ran.result
    assert recheck(document) == []
    found = document["kv_cache"]["headline"]["within_run"]
    assert found["low"] < document["kv_cache"]["headline"]["bytes_per_second"] < found["high"]
    for says, forge in HEADLINES.items():
        forged = deepcopy(document)
        forge(forged["kv_cache"]["headline"])
        deviations = [line for line in recheck(forged) if "kv_cache.headline." in line]
        assert any(says in line for line in deviations), (says, deviations)


FORGERIES: Mapping[str, tuple[Callable[[Document, Document], Any], str]] = {
    "window bytes": (
        lambda d, own: own["tiers"]["storage"]["read"].update(bytes=1),
        "kv_cache.tiers.storage.read.bytes says 1"),
    "bandwidth": (
        lambda d, own: own["tiers"]["storage"]["read"].update(bytes_per_second=7e9),
        "kv_cache.tiers.storage.read.bytes_per_second says 7000000000.0"),
    "the largest object": (
        lambda d, own: own["tiers"]["storage"]["write"]["object_bytes"].update(max=2**40),
        "tiers.storage.write.object_bytes.max says 1099511627776"),
    "objects of a size": (
        lambda d, own: own["tiers"]["storage"]["write"]["object_bytes"]["powers_of_two"].pop(),
        "object_bytes.powers_of_two says"),
    "an operation's bytes": (
        lambda d, own: _row(own).update(bytes=_row(own)["bytes"] * 2),
        "kv_cache.tiers.storage.read.bytes says"),
    "a step of metadata": (
        lambda d, own: own["metadata"][0]["ms"].update(p50=0.0), "metadata[0].ms.p50 says 0.0"),
    "how many operations": (
        lambda d, own: _row(own).update(operations=99999),
        "operations says 99999, but what was counted gives"),
    "p99 of an operation": (
        lambda d, own: _row(own)["device_ms"].update(p99=0.001), "device_ms.p99 says 0.001"),
    "p99 of a tier": (
        lambda d, own: own["tiers"]["storage"]["read"]["device_ms"].update(p99=0.001),
        "tiers.storage.read.device_ms.p99 says 0.001"),
    "a histogram": (
        lambda d, own: _row(own)["histogram_device"]["buckets"][0].__setitem__(0, 3),
        "histogram_device: is not a histogram"),
    "ttft": (
        lambda d, own: own["measured"]["all"]["ttft_ms"].update(p95=0.5), "ttft_ms.p95 says 0.5"),
    "length of the window": (lambda d, own: own.update(window_s=1.0), "kv_cache.window_s says 1.0"),
    "completed requests": (
        lambda d, own: own["requests"].update(completed=9999), "requests.completed says 9999"),
    "failed requests": (lambda d, own: own["requests"].update(failed=1), "requests.submitted says"),
    "a class's tokens": (
        lambda d, own: own["measured"]["batch"].update(output_tokens=10**6), "output_tokens says"),
    "seed": (lambda d, own: own.update(seed=77), "kv_cache.seed is 77"),
    "the engine that was wanted": (
        lambda d, own: own["passport"]["evidence"]["engines"].update(requested="buffered"),
        "engines.requested says 'buffered'"),
    "the engines that moved bytes": (
        lambda d, own: own["passport"]["evidence"]["engines"].update(rows=[]),
        "evidence.engines.rows says []"),
    "evidence that is left out": (
        lambda d, own: own["passport"]["evidence"]["ledger"]["write"].update(process_bytes=None),
        "ledger.write.process_bytes says"),
    "the client's CPU time": (
        lambda d, own: own["passport"]["evidence"]["client"].update(cpu_s=0.0),
        "client.cpu_s says 0.0"),
    "throughput of the reference": (
        lambda d, own: d.update(storage_throughput_mbps=7000.0), "storage_throughput_mbps says"),
    "requests of the reference": (
        lambda d, own: d.update(requests_completed=1), "requests_completed says 1"),
    "tokens of the reference": (
        lambda d, own: d["summary"].update(total_tokens=1), "summary.total_tokens says 1"),
    "p99 of the reference": (lambda d, own: d.update(p99_latency_ms=1.0), "p99_latency_ms says"),
    "hit rate of the reference": (lambda d, own: d.update(cache_hit_rate=0.99), "cache_hit_rate"),
    "percentiles of the reference": (
        lambda d, own: d["summary"]["cache_stats"].update(storage_read_device_p95_ms=0.1),
        "storage_read_device_p95_ms says 0.1"),
    "an unearned pass": (
        lambda d, own: (d.update(overall_passed=True), own.update(status="broken")),
        "overall_passed says true"),
    "the verdict": (
        lambda d, own: own["passport"].update(verdict="splendid"),
        "kv_cache.passport.verdict says 'splendid'"),
    "a rule's status": (
        lambda d, own: own["passport"]["rules"][0].update(status="splendid"), "rules[0].status"),
    "a rule less": (lambda d, own: own["passport"]["rules"].pop(), "kv_cache.passport.rules says"),
    "the reasons": (
        lambda d, own: own["passport"].update(reasons=["none"]),
        "disagrees    kv_cache.passport.reasons"),
    "the thresholds": (
        lambda d, own: own["config"]["passport"].update(counter_tolerance=0.5),
        "changed_thresholds.counter_tolerance is missing"),
    "evidence of another run": (
        lambda d, own: own["passport"]["evidence"]["ledger"]["read"].update(claimed_bytes=7),
        "ledger.read.claimed_bytes says 7"),
    "reconciliation": (
        lambda d, own: own["reconciliation"]["read"].update(process_to_claimed=1.0001),
        "process_to_claimed says 1.0001"),
    "a single latency": (
        lambda d, own: d["end_to_end_latencies"].append(d["end_to_end_latencies"].pop() / 2),
        "end_to_end_latencies has 1 of"),
    "a latency left out": (lambda d, own: d["storage_latencies"].pop(), "storage_latencies.length"),
    "what the run did of a request": (
        lambda d, own: own["semantics"].update(promote=not own["semantics"]["promote"]),
        "kv_cache.semantics.promote says"),
    "more kept than there is room": (
        lambda d, own: own["tiers"]["storage"].update(used_bytes=2**50),
        "kv_cache.tiers.storage says that it held 1125899906842624 bytes at the end"),
    "more in the window than in the run": (
        lambda d, own: own["kernel_counters"]["window"].update(rchar=2**50),
        "kernel_counters.window.rchar says 1125899906842624, more than"),
}  # fmt: skip


@pytest.mark.parametrize("what", FORGERIES)
def test_a_forged_number_is_told_though_the_hashes_fit(
    what: str, directory: Path, verify: Callable[..., Say]
) -> None:
    forge, words = FORGERIES[what]
    document = read(directory)
    forge(document, document["kv_cache"])
    write(directory, document)
    code, out = verify(directory / "result.json")
    assert (code, words in out) == (2, True), out
    assert "changed  " not in out


def test_numbers_that_were_all_made_to_fit_are_told_by_the_records(
    directory: Path, tmp_path: Path, verify: Callable[..., Say]
) -> None:
    document = read(directory)
    measured = document["kv_cache"]["measured"]
    for name in ("all", "batch"):
        measured[name]["prompt_tokens"] += 1
    write(directory, document)
    shutil.copy(directory / "result.json", tmp_path / "R.json")
    assert verify(tmp_path / "R.json")[0] == 0
    code, out = verify(directory)
    assert (code, "but requests.jsonl gives" in out) == (2, True)


def test_bytes_of_the_records_are_those_of_the_ledger(
    directory: Path, verify: Callable[..., Say]
) -> None:
    path = directory / "transfers.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    row = orjson.loads(lines[3])
    row["legs"][0]["system_calls"][0][1] += 4096
    path.write_bytes(b"".join([*lines[:3], orjson.dumps(row) + b"\n", *lines[4:]]))
    write(directory, read(directory))
    code, out = verify(directory)
    assert (code, ".bytes says" in out, "transfers.jsonl gives" in out) == (2, True, True)


@pytest.mark.parametrize(
    "line", [b"", b"{", b"[]", b'{"legs": 5}', b'{"error": null, "cause": "x", "legs": [{}]}', b"5"]
)
@pytest.mark.parametrize("name", RECORDS)
def test_records_of_another_shape_are_told(
    name: str, line: bytes, directory: Path, verify: Callable[..., Say]
) -> None:
    with (directory / name).open("ab") as file:
        file.write(line + b"\n")
    code, out = verify(directory)
    assert (code, f"{name}, line" in out) == (2, True), out


def test_a_key_that_stands_twice_is_told(directory: Path, verify: Callable[..., Say]) -> None:
    text = (directory / "result.json").read_text()
    (directory / "result.json").write_text(text.replace("{", '{"p99_latency_ms": 0.1,', 1))
    code, out = verify(directory)
    assert (code, "duplicate key p99_latency_ms" in out) == (2, True)


# --- no result of ours -----------------------------------------------------------------------

OWN = b'{"kv_cache": {"schema": "%s"' % SCHEMA.encode()

FOREIGN: Mapping[str, tuple[bytes, str]] = {
    "empty": (b"", "empty"),
    "cut short": (b'{"kv_cache": {"schema"', "cut short"),
    "no JSON": (b"\x00\x01\x02", "is not JSON"),
    "no text": (b"\xff\xfe\xfd", "is not text"),
    "a list": (b"[1, 2]", "no section kv_cache"),
    "a number": (b"5", "no section kv_cache"),
    "of another program": (b'{"requests_completed": 5}', "no section kv_cache"),
    "of another shape": (b'{"kv_cache": 5}', "no section kv_cache"),
    "without a schema": (b'{"kv_cache": {}}', "schema None"),
    "of another schema": (b'{"kv_cache": {"schema": "kv-cache-result/99"}}', "result/99"),
    "of a schema that is no text": (b'{"kv_cache": {"schema": [[]]}}', "schema"),
    "deep": (OWN + b', "x": ' + b"[" * 300 + b"]" * 300 + b"}}", "nested deeper"),
    "bottomless": (OWN + b', "x": ' + b"[" * 5000 + b"]" * 5000 + b"}}", "depth"),
    "not a number": (OWN + b', "x": NaN}}', "is not JSON"),
}


@pytest.mark.parametrize("what", FOREIGN)
def test_a_file_that_is_no_result_is_one_sentence(what: str, tmp_path: Path) -> None:
    data, words = FOREIGN[what]
    path = tmp_path / "R.json"
    path.write_bytes(data)
    _refused([str(path)], str(path), words)


def test_what_is_no_file_is_one_sentence(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    _refused([str(tmp_path / "none.json")], "none.json", "no such file")
    _refused([str(tmp_path)], "result.json", "no such file")
    _refused([str(tmp_path / "pipe")], "pipe", "not a regular file")
    _refused(["/dev/zero"], "/dev/zero", "not a regular file")
    _refused(["a\0b"], "RESULT is 'a\\x00b'")
    _refused([], "RESULT", "--help")
    _refused([str(tmp_path), "--fingerprnt=1"], "--fingerprnt")


def test_the_command_answers_with_its_exit_code(run_directory: Path, tmp_path: Path) -> None:
    intact = run(tmp_path, "verify", str(run_directory))
    assert (intact.code, intact.err) == (0, "")
    refused = run(tmp_path, "verify", "none.json")
    assert (refused.code, refused.out, len(refused.err.splitlines())) == (2, "", 1)
    helped = run(tmp_path, "verify", "--help")
    assert (helped.code, "not a signature" in helped.out) == (0, True)


def test_a_file_larger_than_any_result_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "R.json"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    _refused([str(path)], "larger than 256 MiB")


def _refused(argv: list[str], *words: str) -> None:
    with pytest.raises(UsageError) as caught:
        main(argv)
    text = str(caught.value)
    assert all(word in text for word in words), text
    assert "\n" not in text


def test_a_result_without_a_passport_is_told(directory: Path, verify: Callable[..., Say]) -> None:
    document = read(directory)
    del document["kv_cache"]["passport"], document["kv_cache"]["chain"]
    (directory / "result.json").write_bytes(as_json(document))
    code, out = verify(directory)
    assert code == 2
    assert "changed      chain is missing" in out
    assert "kv_cache: object missing required field passport" in out


def test_the_smallest_file_of_our_schema_is_told_to_be_nearly_empty(
    tmp_path: Path, verify: Callable[..., Say]
) -> None:
    (tmp_path / "R.json").write_bytes(OWN + b"}}")
    code, out = verify(tmp_path / "R.json")
    assert (code, "verdict      suspect" in out) == (2, True)


# --- anything at all -------------------------------------------------------------------------

ODD: list[Any] = [
    None, True, -1, 2**63, 2**64 - 1, 1e308, -0.0, 0.5, "", "x\x1b[31mred", [], {}, [[[]]],
    {"a": {"b": [1]}}, [1, 2], "9" * 400,
]  # fmt: skip


@pytest.fixture(scope="module")
def result(run_directory: Path) -> Document:
    return read(run_directory)


@pytest.fixture(scope="module")
def places(result: Document) -> list[tuple[Any, ...]]:
    """Of every value of the result; of histograms' buckets the first few."""
    found = [path for path in leaves(result) if len(path) > 1 or path[0] != "kv_cache"]
    return [p for p in found if "buckets" not in p or p.index("buckets") + 2 >= len(p)]


ANY = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@ANY
@given(data=st.data())
def test_any_value_that_is_changed_is_noticed(
    data: st.DataObject, result: Document, places: list[tuple[Any, ...]]
) -> None:
    document = deepcopy(result)
    put(document, data.draw(st.sampled_from(places)), data.draw(st.sampled_from(ODD)))
    assert bool(check(document, {})) == (orjson.dumps(document) != orjson.dumps(result))


@ANY
@given(data=st.data())
def test_nothing_that_stands_in_a_result_makes_verify_fail(
    data: st.DataObject, result: Document, places: list[tuple[Any, ...]], tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    document = deepcopy(result)
    del document["kv_cache"]["chain"]
    for _ in range(data.draw(st.integers(1, 5))):
        path = data.draw(st.sampled_from(places))
        with contextlib.suppress(LookupError, TypeError):  # an earlier change took it away
            put(document, path, data.draw(st.sampled_from(ODD)))
    (tmp_path / "R.json").write_bytes(as_json(seal(document, {})))
    try:
        code = main([str(tmp_path / "R.json")])
    except UsageError:  # the schema itself was changed
        assert document["kv_cache"]["schema"] != SCHEMA
    else:
        assert code == (2 if recheck(document) else 0)
    assert "\x1b" not in capsys.readouterr().out
