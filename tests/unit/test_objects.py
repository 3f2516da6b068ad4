"""Places of object stores, keys and what errors say: nothing here speaks to a server."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_cache.config.load import load_config
from kv_cache.config.root import Config
from kv_cache.config.run_warnings import config_warnings
from kv_cache.config.storage_targets import storage_places
from kv_cache.core.errors import ConfigError, PlaceError
from kv_cache.core.mpirank import MpiRank
from kv_cache.metrics.evidence import Thresholds
from kv_cache.metrics.judging import Status
from kv_cache.metrics.passport import judge
from kv_cache.tiers.objects import ObjectPlace, below, is_object_url, parse_url
from kv_cache.tiers.objects.account import Account, account_of, endpoint_of, region_of
from kv_cache.tiers.objects.client import answer_of

SECRET = "hush-hush-hush"
KEYS = {"AWS_ACCESS_KEY_ID": "AKIA1", "AWS_SECRET_ACCESS_KEY": SECRET}


# --- URLs ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "bucket", "prefix"),
    [
        ("s3://bucket", "bucket", ""),
        ("s3://bucket/", "bucket", ""),
        ("s3://my.bucket-1/a/b_c/d=1/", "my.bucket-1", "a/b_c/d=1"),
    ],
)
def test_a_url_is_a_bucket_and_a_prefix(text: str, bucket: str, prefix: str) -> None:
    assert parse_url(text) == (bucket, prefix)
    assert str(ObjectPlace(bucket=bucket, prefix=prefix)) == text.rstrip("/")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("s3:/bucket/a", "two slashes"),
        ("S3://bucket", "only S3's protocol"),
        ("gs://bucket", "only S3's protocol"),
        ("s3://", "cannot be a bucket"),
        ("s3:///a", "cannot be a bucket"),
        ("s3://Bucket", "cannot be a bucket"),
        ("s3://ab", "cannot be a bucket"),
        ("s3://a..b", "cannot be a bucket"),
        ("s3://bucket/a//b", "cannot be a part of a prefix"),
        ("s3://bucket/a/../b", "cannot be a part of a prefix"),
        ("s3://bucket/a b", "cannot be a part of a prefix"),
        ("s3://bucket/a%2fb", "cannot be a part of a prefix"),
        ("s3://bucket/" + "a" * 801, "at most 800"),
        ("s3://bucket/a?versionId=3", "keys come from"),
    ],
)
def test_a_url_that_is_none_is_refused_in_one_sentence(text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as refused:
        parse_url(text)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("text", [f"s3://AKIA:{SECRET}@bucket/a", f"s3://bucket/a?sig={SECRET}"])
def test_what_may_be_a_key_is_not_repeated(text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_url(text)
    assert SECRET not in str(refused.value)


@given(st.text(max_size=60))
def test_any_text_behind_the_scheme_is_read_or_refused(text: str) -> None:
    try:
        url = parse_url(f"s3://{text}")
    except ConfigError:
        return
    assert parse_url(str(ObjectPlace(bucket=url.bucket, prefix=url.prefix))) == url


def test_what_lies_below_a_place_keeps_its_slashes() -> None:
    assert below("s3://bucket/a", "rank_1") == "s3://bucket/a/rank_1"
    assert below("s3://bucket/", "rank_1") == "s3://bucket/rank_1"
    assert below("/mnt/a", "rank_1") == "/mnt/a/rank_1"
    assert not is_object_url("/mnt/s3:/x")


def test_each_rank_has_a_prefix_of_its_own() -> None:
    from kv_cache.crew.per_rank import config_of_rank

    config = load_config(
        None, {"tiers.cache_dir": ("s3://bucket/a",), "tiers.storage_capacity_gib": 1.0}
    )
    rank = MpiRank(rank=2, ranks=4, on_machine=4, source="PMI_RANK")
    assert config_of_rank(config, rank, Path("r.json")).tiers.cache_dir == ("s3://bucket/a/rank_2",)


# --- what goes together ----------------------------------------------------------------------


def asked(**options: object) -> Config:
    given: dict[str, object] = {
        "tiers.cache_dir": ("s3://bucket/a",),
        "tiers.storage_capacity_gib": 1.0,
    }
    return load_config(None, {**given, **{k.replace("__", "."): v for k, v in options.items()}})


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"tiers__storage_capacity_gib": 0.0}, "no free space to take a share of"),
        ({"tiers__cache_dir": ("s3://bucket/a", "/tmp/x")}, "give only one of them"),
        ({"io__layout": "arena"}, "that is about files"),
        ({"io__engine": "direct"}, "that is about files"),
        ({"io__write_engine": "buffered"}, "that is about files"),
        ({"io__personality": "lmcache"}, "that is about files"),
        ({"precondition__enabled": True}, "an object store is no drive"),
        ({"monitor__latency_tracing": True}, "device of this machine"),
        ({"output__fio_export": "x.fio"}, "device of this machine"),
        ({"s3__endpoint": f"http://me:{SECRET}@host"}, "a name or a password"),
        ({"s3__endpoint": "host:9000"}, "no URL of a server"),
        ({"s3__endpoint": "http://host/bucket"}, "more than a server"),
    ],
)
def test_options_that_mean_a_device_are_refused(options: dict[str, object], why: str) -> None:
    with pytest.raises(ConfigError, match=why) as refused:
        asked(**options)
    assert SECRET not in str(refused.value)


def test_options_without_effect_are_told() -> None:
    assert any("fsync" in said for said in config_warnings(asked(io__fsync="object")))
    alone = load_config(None, {"s3.part_mib": 8})
    assert any("section s3" in said for said in config_warnings(alone))


def test_virtual_time_asks_no_server() -> None:
    config = asked(run__virtual_time=True, tiers__storage_capacity_gib=0.0)
    assert all(isinstance(place, Path) for place in storage_places(config))


# --- keys, endpoints, regions ------------------------------------------------------------------


def files(tmp_path: Path, **texts: str) -> dict[str, str]:
    """The variables that name these shared files."""
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    return {
        "AWS_CONFIG_FILE": str(tmp_path / "config"),
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "credentials"),
        "AWS_EC2_METADATA_DISABLED": "true",
    }


def test_keys_come_from_the_environment_first(tmp_path: Path) -> None:
    text = "[default]\naws_access_key_id=AKIA2\naws_secret_access_key=other\n"
    found = account_of({**files(tmp_path, credentials=text), **KEYS, "AWS_SESSION_TOKEN": "t"})
    assert found.source == "environment"
    assert dict(found.options) == {
        "access_key_id": "AKIA1",
        "secret_access_key": SECRET,
        "session_token": "t",
    }
    assert SECRET not in repr(found)


def test_a_profile_has_its_keys_region_and_endpoint_in_the_shared_files(tmp_path: Path) -> None:
    environ = {
        **files(
            tmp_path,
            credentials=f"[mine]\naws_access_key_id=A\naws_secret_access_key={SECRET}\n",
            config="[profile mine]\nregion=eu-west-1\nendpoint_url=http://host:9000\n",
        ),
        "AWS_PROFILE": "mine",
    }
    assert account_of(environ).options["secret_access_key"] == SECRET
    assert region_of(None, environ) == "eu-west-1"
    assert endpoint_of(None, environ) == "http://host:9000"
    assert endpoint_of("https://other", environ) == "https://other"
    assert endpoint_of(None, {**environ, "AWS_ENDPOINT_URL_S3": "http://s3:1"}) == "http://s3:1"


@pytest.mark.parametrize(
    ("texts", "more", "why"),
    [
        ({}, {}, "no keys for the object store were found"),
        ({}, {"AWS_PROFILE": "gone"}, "names a profile that neither"),
        ({"credentials": f"[default]\n{SECRET}\n"}, {}, "not a file of profiles"),
        ({}, {**KEYS, "AWS_ACCESS_KEY_ID": f"{SECRET}\nA"}, "access key id for the object store"),
        ({}, {**KEYS, "AWS_SESSION_TOKEN": f"{SECRET}\u00e9"}, "session token for the object"),
        ({"config": "[default]\ncredential_process=/bin/x\n"}, {}, "by credential_process"),
        ({"config": "[default]\nrole_arn=arn:x\nsource_profile=y\n"}, {}, "by role_arn"),
    ],
)
def test_keys_that_cannot_be_had_are_told_in_one_sentence(
    tmp_path: Path, texts: dict[str, str], more: dict[str, str], why: str
) -> None:
    with pytest.raises(PlaceError, match=why) as refused:
        account_of({**files(tmp_path, **texts), **more})
    assert SECRET not in str(refused.value)


def test_what_the_client_finds_by_itself_is_left_to_it(tmp_path: Path) -> None:
    off = files(tmp_path)
    web = {"AWS_WEB_IDENTITY_TOKEN_FILE": "/token", "AWS_ROLE_ARN": "arn:x"}
    assert account_of({**off, **web}) == Account(source="web identity")
    container = {"AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://127.0.0.1/x"}
    assert account_of({**off, **container}) == Account(source="container")
    unsigned = account_of({**off, "AWS_SKIP_SIGNATURE": "true"})
    assert dict(unsigned.options) == {"skip_signature": True}


# --- what errors say -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "reason", "code"),
    [
        ("status code: 503 x <Code>SlowDown</Code>", "slow-down", "SlowDown"),
        ("status code: 500 Internal", "server-error", "HTTP 500"),
        ("status code: 507", "no-space", "HTTP 507"),
        ("status code: 404 <Code>NoSuchBucket</Code>", "no-such-bucket", "NoSuchBucket"),
        ("status code: 404", "vanished", "HTTP 404"),
        ("status code: 416", "truncated", "HTTP 416"),
        ("status code: 400 <Code>EntityTooSmall</Code>", "s3-error", "EntityTooSmall"),
        ("error sending request kind: Timeout,", "timed-out", ""),
        ("error sending request kind: Connect, dns error", "no-such-host", ""),
        ("error sending request kind: Connect, refused", "unreachable", ""),
        ("error decoding response body", "connection-lost", ""),
        ("error response: <Error><Code>InternalError</Code>", "server-error", "InternalError"),
        ("failed for key k0: no (code: AccessDenied)", "permission-denied", "AccessDenied"),
        ("Got invalid DeleteObjects response: not closed", "connection-lost", ""),
        ("Got invalid list response: unexpected `Event::Eof`", "connection-lost", ""),
        ("who knows", "s3-error", ""),
    ],
)
def test_an_error_is_a_word_and_the_servers_code(text: str, reason: str, code: str) -> None:
    assert answer_of(RuntimeError(f"{text} AWSAccessKeyId {SECRET}")) == (reason, code)


# --- the passport --------------------------------------------------------------------------------


def of_objects(**ledger: object) -> dict[str, object]:
    rows = [{"operation": kind, "engine": "s3", "bytes": 1 << 30} for kind in ("read", "write")]
    sides = {kind: {"claimed_bytes": 1 << 30, "process_bytes": 0} for kind in ("read", "write")}
    return {
        "driver": "real-io",
        "engines": {"requested": "auto", "rows": rows},
        "ledger": {**sides, "accounted": False, **ledger},
    }


def statuses(evidence: dict[str, object]) -> dict[str, Status]:
    return {f.rule: f.status for f in judge(evidence, Thresholds()).findings}


def test_rules_about_devices_have_nothing_to_say_of_objects() -> None:
    found = statuses(of_objects(server_here=True))
    for rule in ("V1", "V3", "V4", "V5", "V14", "V19", "V23"):
        assert found[rule] is Status.NOT_APPLICABLE, rule
    assert found["V6"] is Status.NOT_JUDGED


@pytest.mark.parametrize(
    ("carried", "status"), [(1.02, Status.PASS), (0.5, Status.INVALID), (None, Status.NOT_JUDGED)]
)
def test_the_network_cannot_have_carried_less_than_is_claimed(
    carried: float | None, status: Status
) -> None:
    nbytes = None if carried is None else round(carried * (1 << 30))
    side = {"claimed_bytes": 1 << 30, "network_bytes": nbytes}
    assert statuses(of_objects(server_here=False, read=side, write=side))["V6"] is status


@pytest.mark.parametrize(
    ("window", "calls", "suspected"),
    [
        ((477_888_512, 446_836_354, 68_007_314), 664_047_579, True),  # a proxy let 375,950,844 by
        ((2_000_000_000, 2_250_000_000, 0), 4_000_000_000, False),  # requests under way
        ((1_326_579_712, 1_353_876_351, -18_550_114), 2_231_131_210, False),  # after a warm-up
        ((477_888_512, 1000, 0), 100_000_000, False),  # calls that the kernel does not count
        ((50_000_000, 40_000_000, 0), 664_047_579, False),
    ],
)
def test_uploads_that_are_not_sent_when_the_window_closes_are_suspect_wherever_the_server_is(
    window: tuple[int, int, int], calls: int, suspected: bool
) -> None:
    """Figures of runs against a proxy that limits uploads."""
    written, given, queued = window
    write = {
        "claimed_bytes": 663_879_680, "calls_bytes": calls, "network_bytes": 0,
        "window_claimed_bytes": written, "window_calls_bytes": given,
        "window_queued_bytes": queued,
    }  # fmt: skip
    findings = judge(of_objects(server_here=True, write=write), Thresholds()).findings
    [found] = (each for each in findings if each.rule == "V6")
    assert found.status is (Status.SUSPECT if suspected else Status.NOT_JUDGED)
    assert ("use a --warmup" in found.message) is suspected
