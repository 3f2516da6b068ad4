"""Metrics in Prometheus' format, and the server that tells them."""

import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from kv_cache.bench.endpoint import FRESH_S, Endpoint, check_endpoint
from kv_cache.core.block import content_key
from kv_cache.core.effect import CopyRef, IoChunk, Leg, OpDone, Read, Write
from kv_cache.core.errors import PlaceError
from kv_cache.core.kinds import Cause, OpKind, Outcome, Phase, Qos, Tier
from kv_cache.core.record import RequestRecord
from kv_cache.metrics.exposition import CONTENT_TYPE, EDGES_NS, about, exposition, measured
from kv_cache.metrics.histogram import Histogram
from kv_cache.metrics.recorder import Edges, Recorder
from kv_cache.metrics.window import Gauges, Meter, SaturationLevel, Window
from tests.cli import PATIENCE_S, wait_for

LOOPBACK = "127.0.0.1"
GAUGES = Gauges(
    users=7, workers=8, in_flight=3, queued=2, oldest_queued_ns=1_500_000_000, behind=1,
    submitted=50,
)  # fmt: skip


def families(text: str) -> dict[str, Any]:
    parser = pytest.importorskip("prometheus_client.parser")
    return {family.name: family for family in parser.text_string_to_metric_families(text)}


def operation(kind: OpKind, op: Any, tier: Tier, ns: int, cause: Cause = Cause.REUSE) -> OpDone:
    ref = CopyRef(1, content_key("endpoint", 1), tier, 4096, 0)
    leg = Leg(tier, kind, "direct", 4096, 0, ns, ns, (IoChunk(ns, 4096),))
    return OpDone(op(ref, cause), 0, ns, (leg,))


def recorded() -> tuple[Recorder, Meter]:
    meter = Meter()
    edges = Edges(populate_end_ns=0, measure_start_ns=0, measure_end_ns=None)
    recorder = Recorder(edges, meter)
    for ns in (10_000, 900_000, 30_000_000):
        recorder.op(operation(OpKind.READ, Read, Tier.NVME, ns))
    recorder.op(operation(OpKind.READ, Read, Tier.NVME, 5, Cause.DECODE))
    recorder.op(operation(OpKind.WRITE, Write, Tier.CPU, 700))
    for outcome in (Outcome.COMPLETED, Outcome.FAILED):
        recorder.request(
            RequestRecord(
                request_id=1, user="u", conversation="c", turn=1, qos=Qos.BATCH, prompt_tokens=100,
                output_tokens=10, outcome=outcome, intended_ns=0, enqueued_ns=0, started_ns=1,
                first_token_ns=2_000_000, finished_ns=4_000_000,
            )
        )  # fmt: skip
    return recorder, meter


def window(meter: Meter) -> Window:
    machine = {"device_utilisation": 0.5, "rss_bytes": 7, "gpu_used_bytes": None, "ok": True}
    made = meter.read(meter.take(10**9), Phase.MEASURE, GAUGES, machine)
    return replace(made, saturation=SaturationLevel(0.75, "queue_depth", False))


def scraped() -> dict[str, Any]:
    recorder, meter = recorded()
    latest = window(meter)
    return families(exposition(measured(recorder, meter.totals, latest)))


def values(family: Any, **labels: str) -> dict[str, float]:
    """Samples with these labels, by name."""
    return {
        s.name: s.value for s in family.samples if labels.items() <= s.labels.items()
    }  # fmt: skip


def test_operations_are_told_by_tier_operation_cause_and_phase() -> None:
    found = scraped()
    where = {"tier": "storage", "operation": "read", "phase": "measure"}
    moved = values(found["kv_cache_bytes"], cause="reuse", **where)
    assert moved == {"kv_cache_bytes_total": 3 * 4096}
    ended = values(found["kv_cache_operations"], cause="decode", **where)
    assert ended == {"kv_cache_operations_total": 1}
    assert found["kv_cache_bytes"].type == "counter"


def test_requests_are_told_by_class_and_outcome() -> None:
    found = scraped()["kv_cache_requests"]
    for outcome, count in (("completed", 1), ("failed", 1), ("rejected", 0), ("unfinished", 0)):
        seen = values(found, **{"class": "batch", "outcome": outcome, "phase": "measure"})
        assert seen == {"kv_cache_requests_total": count}
    tokens = values(scraped()["kv_cache_output_tokens"], **{"class": "batch"})
    assert tokens == {"kv_cache_output_tokens_total": 10}


def test_histograms_grow_to_their_count_and_are_in_seconds() -> None:
    found = scraped()["kv_cache_operation_seconds"]
    assert found.type == "histogram"
    here = [s for s in found.samples if s.labels["tier"] == "storage"]
    buckets = [s for s in here if s.name.endswith("_bucket")]
    assert len(buckets) == len(EDGES_NS) + 1
    assert all(a.value <= b.value for a, b in pairwise(buckets))
    by_edge = {float(s.labels["le"]): s.value for s in buckets}
    assert (by_edge[1e-5], by_edge[5e-4], by_edge[1e-3], by_edge[0.05]) == (2, 2, 3, 4)
    assert by_edge[float("inf")] == 4
    rest = {s.name.rsplit("_", 1)[1]: s.value for s in here if s not in buckets}
    assert rest == {"count": 4, "sum": pytest.approx(0.030910005)}


def test_the_latest_window_is_told_in_gauges() -> None:
    found = scraped()
    assert values(found["kv_cache_users"]) == {"kv_cache_users": 7}
    assert values(found["kv_cache_oldest_queued_seconds"]) == {
        "kv_cache_oldest_queued_seconds": 1.5
    }
    assert values(found["kv_cache_saturation"], by="queue_depth") == {"kv_cache_saturation": 0.75}
    assert values(found["kv_cache_machine_device_utilisation"]) == {
        "kv_cache_machine_device_utilisation": 0.5
    }
    assert values(found["kv_cache_machine_ok"]) == {"kv_cache_machine_ok": 1}
    assert "kv_cache_machine_gpu_used_bytes" not in found
    assert "kv_cache_window_operation_seconds" not in found  # of four operations


def test_a_percentile_of_the_latest_window_is_told_where_enough_operations_ended() -> None:
    recorder, meter = recorded()
    for _ in range(250):
        recorder.op(operation(OpKind.READ, Read, Tier.NVME, 30_000_000))
    found = families(exposition(measured(recorder, meter.totals, window(meter))))
    told = found["kv_cache_window_operation_seconds"]
    p95 = values(told, tier="storage", quantile="0.95")
    assert p95 == {"kv_cache_window_operation_seconds": pytest.approx(0.03, rel=1 / 256)}
    assert not values(told, quantile="0.99")


def test_before_the_first_window_there_are_no_gauges() -> None:
    recorder, meter = recorded()
    found = families(exposition(measured(recorder, meter.totals, None)))
    assert "kv_cache_users" not in found
    assert "kv_cache_bytes" in found


def test_labels_are_escaped() -> None:
    text = exposition(about({"model": 'a"b\\c\nd'}, "measure"))
    assert "\n".join(text.splitlines()) + "\n" == text
    [sample] = families(text)["kv_cache_run_info"].samples
    assert sample.labels == {"model": 'a"b\\c\nd'}


def test_each_metric_is_explained_once() -> None:
    recorder, meter = recorded()
    text = exposition(measured(recorder, meter.totals, window(meter)))
    types = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(types) == len(set(types))
    assert text.endswith("\n")


def test_a_histogram_counts_at_most_as_its_buckets_do() -> None:
    made = Histogram()
    for value in (1, 100, 1000, 100_000):
        made.add(value)
    assert made.counts_at_most([0, 1, 99, 100, 100_000]) == [0, 1, 1, 2, 4, 4]
    assert made.counts_at_most([]) == [4]


# --- the server --------------------------------------------------------------------------------


@contextmanager
def serving(tells: Any = lambda: "kv_cache_x 1\n") -> Iterator[Endpoint]:
    with Endpoint(LOOPBACK, 0, tells) as endpoint:
        yield endpoint


def ask(url: str, method: str = "GET") -> tuple[int, str, bytes]:
    request = urllib.request.Request(url, method=method)
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
        return answer.status, answer.headers["Content-Type"], answer.read()


def test_a_scrape_gets_the_text_in_the_standard_format() -> None:
    with serving() as endpoint:
        assert ask(endpoint.url) == (200, CONTENT_TYPE, b"kv_cache_x 1\n")
        assert ask(f"{endpoint.url}?a=b")[0] == 200
        assert ask(endpoint.url, "HEAD") == (200, CONTENT_TYPE, b"")
        assert ask(endpoint.url.removesuffix("metrics"))[2] == b"kv-cache: /metrics\n"
        with pytest.raises(urllib.error.HTTPError, match="404") as error:
            ask(f"{endpoint.url}/other")
        error.value.close()


def test_however_often_it_is_asked_it_looks_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    looks, now = list[int](), [100.0]
    clock = SimpleNamespace(monotonic=lambda: now[0])
    monkeypatch.setattr("kv_cache.bench.endpoint.time", clock)

    def tells() -> str:
        looks.append(1)
        return f"kv_cache_x {len(looks)}\n"

    with serving(tells) as served:
        for _ in range(2):
            threads = [threading.Thread(target=ask, args=(served.url,)) for _ in range(12)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            now[0] += FRESH_S
    assert len(looks) == 2


def test_what_goes_wrong_while_telling_ends_nothing() -> None:
    def tells() -> str:
        raise RuntimeError("here")

    with serving(tells) as endpoint:
        with pytest.raises(urllib.error.HTTPError, match="500") as error:
            ask(endpoint.url)
        error.value.close()
        endpoint.render = lambda: "kv_cache_x 2\n"
        assert ask(endpoint.url)[2] == b"kv_cache_x 2\n"


def test_a_client_that_says_nothing_keeps_nobody_out() -> None:
    with serving() as endpoint:
        port = int(endpoint.url.rsplit(":", 1)[1].split("/")[0])
        with closing(socket.create_connection((LOOPBACK, port))):
            assert ask(endpoint.url)[0] == 200


def test_clients_who_send_a_byte_at_a_time_keep_nobody_out() -> None:
    """More than there are places: for each scrape the oldest of them goes."""
    with serving() as endpoint, ExitStack() as open_:
        port = int(endpoint.url.rsplit(":", 1)[1].split("/")[0])
        for _ in range(100):
            client = socket.create_connection((LOOPBACK, port))
            open_.enter_context(closing(client))
            client.sendall(b"G")
        wait_for(lambda: len(endpoint._server._clients) == 64)
        time.sleep(1.1)  # as long as a client may be slow unpunished
        for _ in range(20):
            assert ask(endpoint.url)[0] == 200


def test_a_place_is_given_back_after_each_answer() -> None:
    with serving() as endpoint:
        for _ in range(150):
            assert ask(endpoint.url)[0] == 200


def test_it_ends_when_it_is_closed() -> None:
    with serving() as endpoint:
        url = endpoint.url
    with pytest.raises(urllib.error.URLError, match="refused"):
        ask(url)


def test_a_port_in_use_is_one_sentence() -> None:
    with serving() as endpoint:
        port = int(endpoint.url.rsplit(":", 1)[1].split("/")[0])
        with pytest.raises(PlaceError, match=f"--metrics-port {port}: it is in use on 127.0.0.1"):
            check_endpoint(LOOPBACK, port)
    check_endpoint(LOOPBACK, port)


@pytest.mark.parametrize("host", ["192.0.2.1", "no such host", ""])
def test_an_address_of_nobody_is_one_sentence(host: str) -> None:
    with pytest.raises(PlaceError, match="--metrics-host"):
        check_endpoint(host, 0)
