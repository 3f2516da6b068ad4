"""The grammar of options: files, environment variables, `--set`, flags, and numbers with units."""

import json
import logging
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_cache.cli import COMMANDS
from kv_cache.cli.command import Command
from kv_cache.cli.flags import parse, variable_of
from kv_cache.config.load import load_config
from kv_cache.config.root import Config, options
from kv_cache.config.schema import describe, from_mapping, number_with_unit, opt, read_text
from kv_cache.config.unread import value_at
from kv_cache.core.errors import ConfigError
from tests import cli
from tests.cli import ROOT


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [variable_of(path) for path in options()]:
        monkeypatch.delenv(name, raising=False)


def setenv(monkeypatch: pytest.MonkeyPatch, variables: Mapping[str, str]) -> None:
    for name, text in variables.items():
        monkeypatch.setenv(name, text)


def refusal(*argv: str) -> str:
    with pytest.raises(ConfigError) as refused:
        parse(argv).config()
    assert "\n" not in str(refused.value)
    return str(refused.value)


# --- precedence ------------------------------------------------------------------------------


def test_default_file_environment_set_and_flag_override_each_other_in_this_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "f.yaml"
    file.write_text("run: {num_users: 2}\n")
    argv: list[str] = []
    users = []
    for word in ("", f"--config={file}", "ENV", "--set=run.num_users=4", "--num-users=5"):
        if word == "ENV":
            monkeypatch.setenv("KV_CACHE_RUN__NUM_USERS", "3")
        elif word:
            argv.append(word)
        users.append(parse(argv).config().run.num_users)
    assert users == [100, 2, 3, 4, 5]


@pytest.mark.parametrize("source", ["environment", "set", "flag"])
def test_what_is_set_in_any_way_wins_over_a_personality(
    source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    argv = ["--personality=mooncake"]
    if source == "environment":
        monkeypatch.setenv("KV_CACHE_IO__THREADS", "3")
    argv += {"set": ["--set=io.threads=3"], "flag": ["--io-threads=3"]}.get(source, [])
    assert parse(argv).config().io.threads == 3


def test_a_personality_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KV_CACHE_IO__PERSONALITY", "mooncake")
    assert parse([]).config().io == parse(["--personality=mooncake"]).config().io


def test_the_python_api_reads_no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KV_CACHE_RUN__NUM_USERS", "3")
    assert load_config().run.num_users == 100


# --- variables -------------------------------------------------------------------------------


def test_each_option_of_a_section_has_a_variable_of_its_own() -> None:
    variables = [variable_of(path) for path in options()]
    assert len(set(variables)) == len(variables)
    assert variable_of("user_templates.chatbot.context_range") == (
        "KV_CACHE_USER_TEMPLATES__CHATBOT__CONTEXT_RANGE"
    )


@pytest.mark.parametrize(
    ("variables", "path", "value"),
    [
        ({"KV_CACHE_TIERS__CACHE_DIR": "/x"}, "tiers.cache_dir", ("/x",)),
        ({"KV_CACHE_RUN__MODEL_MIX": "a=1,tiny-1b=2"}, "run.model_mix", {"a": 1.0, "tiny-1b": 2.0}),
        ({"KV_CACHE_WORKLOAD__MULTI_TURN": "False"}, "workload.multi_turn", False),
        ({"KV_CACHE_SEMANTICS__PROMOTE": "true"}, "semantics.promote", True),
        ({"KV_CACHE_LENGTHS__PROMPT__LAW": "fixed", "KV_CACHE_LENGTHS__PROMPT__VALUE": "7"},
         "lengths.prompt.value", 7.0),
        ({"KV_CACHE_USER_TEMPLATES__CODING__THINK_TIME_RANGE": "100ms,1s"},
         "user_templates.coding.think_time_range", (0.1, 1.0)),
    ],
)  # fmt: skip
def test_a_variable_is_read_as_the_flag_is(
    monkeypatch: pytest.MonkeyPatch, variables: Mapping[str, str], path: str, value: object
) -> None:
    setenv(monkeypatch, variables)
    assert parse([]).overrides[path] == value


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "KV_CACHE_RUN__NUM_USERS",
            "many",
            "NUM_USERS is 'many'; it must be a whole",
        ),
        ("KV_CACHE_RUN__NUM_USERS", "0", "KV_CACHE_RUN__NUM_USERS is 0; it must be a whole number"),
        ("KV_CACHE_RUN__NUM_USERS", "", "KV_CACHE_RUN__NUM_USERS is ''; it must be a whole number"),
        ("KV_CACHE_RUN__MODEL", "", "KV_CACHE_RUN__MODEL is ''; it must be text"),
        ("KV_CACHE_RUN__VIRTUAL_TIME", "1", "it must be true or false"),
        ("KV_CACHE_RUN__NUM_USER", "5", "Did you mean 'KV_CACHE_RUN__NUM_USERS'?"),
        ("KV_CACHE_RUN__", "5", "the environment variable KV_CACHE_RUN__ is not an option's"),
        ("KV_CACHE_RUNS__NUM_USERS", "5", "Did you mean 'KV_CACHE_RUN__NUM_USERS'?"),
        ("KV_CACHE_RUN__num_users", "5", "the environment variable KV_CACHE_RUN__num_users is not"),
    ],
)
def test_a_variable_that_means_nothing_is_refused_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch, name: str, text: str, message: str
) -> None:
    monkeypatch.setenv(name, text)
    assert message in refusal()


@pytest.mark.parametrize(
    "name",
    [
        "KV_CACHE_RANK", "KV_CACHE_RANKS_HERE", "KV_CACHE_COORDINATOR", "KV_CACHE_SCREENSHOTS",
        "KV_CACHE_MODEL_CONFIGS", "KV_CACHE__RUN", "KV_CACHE_PROBE__SECONDS",
        "KV_CACHE_TRACE_STATS__REQUESTS", "KV_CACHE_SIM__SEEDS", "OTHER_RUN__NUM_USERS",
        "kv_cache_run__num_users",
    ],
)  # fmt: skip
def test_variables_of_others_are_left_alone(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "0x")
    invocation = parse([])
    assert invocation.overrides == {}
    assert invocation.environment == {}


def commands() -> Iterator[Command[Any]]:
    for name in COMMANDS.values():
        module = import_module(f"kv_cache.cli.{name}")
        yield from (each for each in vars(module).values() if isinstance(each, Command))


def test_no_variable_of_a_command_is_one_of_the_configuration() -> None:
    configuration = {variable_of(path) for path in options()}
    names = [command.name for command in commands()]
    assert {"sim", "precondition", "trace stats"} <= set(names)
    for command in commands():
        assert not configuration & command.variables, command.name
    assert variable_of("requests", "trace stats") == "KV_CACHE_TRACE_STATS__REQUESTS"


@pytest.mark.parametrize("name", ["KV_CACHE_SIM__SEED", "KV_CACHE_PRECONDITION__SIZE"])
def test_what_neither_a_command_nor_a_section_of_one_name_has_is_refused(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "2")
    assert f"{name} is not an option's" in refusal()


def test_a_value_that_a_flag_overrides_is_not_said_to_be_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    setenv(monkeypatch, {"KV_CACHE_RUN__NUM_USERS": "3", "KV_CACHE_RUN__SEED": "4"})
    assert parse([]).environment == {
        "run.num_users": "KV_CACHE_RUN__NUM_USERS", "run.seed": "KV_CACHE_RUN__SEED",
    }  # fmt: skip
    assert parse(["--num-users=5", "--set=run.seed=6"]).environment == {}


def test_a_run_logs_its_variables_and_its_result_holds_their_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setenv(monkeypatch, {"KV_CACHE_RUN__MAX_REQUESTS": "3", "KV_CACHE_RUN__NUM_USERS": "2"})
    ran = cli.run(tmp_path, "--virtual-time", "--output=r.json", "--seed=1", "--num-users=4")
    assert ran.code == 0, ran.err
    assert "INFO from the environment: KV_CACHE_RUN__MAX_REQUESTS=3\n" in ran.err
    assert "NUM_USERS" not in ran.err
    config = json.loads((tmp_path / "r.json").read_bytes())["kv_cache"]["config"]
    assert config["run"]["max_requests"] == 3
    assert config["run"]["num_users"] == 4


def test_a_command_that_cannot_use_an_option_names_the_variable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KV_CACHE_RUN__TRIALS", "2")
    ran = cli.run(tmp_path, "precondition", "--cache-dir=c")
    assert ran.code == 2
    assert "run.trials (KV_CACHE_RUN__TRIALS) cannot be given to precondition" in ran.err


def test_a_sweep_warns_of_variables_that_its_runs_do_not_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KV_CACHE_RUN__NUM_USERS", "2")
    (tmp_path / "g.yaml").write_text(
        "base: {run.virtual_time: true}\nvary: {run.max_requests: [1]}\n"
    )
    ran = cli.run(tmp_path, "sweep", "g.yaml", "--results-dir=d", "--dry-run")
    assert ran.code == 0, ran.err
    assert "WARNING KV_CACHE_RUN__NUM_USERS is not read by a sweep" in ran.err


def test_the_mlperf_wrapper_refuses_variables_beside_an_option_of_the_rules(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KV_CACHE_IO__VERIFY", "off")
    ran = subprocess.run(
        [sys.executable, str(ROOT / "mlperf_wrapper.py"), "--option=1", "--cache-dir=c",
         "--base-output-dir=o"],
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert ran.returncode == 2
    assert (
        "io.verify (by --set or in the environment) cannot be given beside --option" in ran.stderr
    )
    assert not (tmp_path / "o").exists() or not any((tmp_path / "o").iterdir())


# --- the options of a command ----------------------------------------------------------------


@dataclass(frozen=True)
class _ProbeLike:
    seconds: float = opt(5.0, "How long", unit="s", above=0, high=60, flag="--seconds")
    words: tuple[str, ...] = opt((), "Which", flag="WORD")


_COMMAND = Command(name="made up", options=_ProbeLike, about="", of_run=False)


def test_options_of_a_command_follow_the_same_order(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "kv_cache")
    assert _COMMAND.parse([]).seconds == 5
    monkeypatch.setenv("KV_CACHE_MADE_UP__SECONDS", "7s")
    assert _COMMAND.parse([]).seconds == 7
    assert caplog.messages == ["from the environment: KV_CACHE_MADE_UP__SECONDS=7s"]
    assert _COMMAND.parse(["--set=seconds=8"]).seconds == 8
    assert _COMMAND.parse(["--set=seconds=8", "--seconds=9"]).seconds == 9
    monkeypatch.setenv("KV_CACHE_MADE_UP__SECOND", "7")
    with pytest.raises(ConfigError, match="Did you mean 'KV_CACHE_MADE_UP__SECONDS'"):
        _COMMAND.parse([])


# --- --set -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("run.num_users", "--set run.num_users has no ="),
        ("num_users=5", "--set num_users is not a known option."),
        ("run.num_user=5", "Did you mean 'run.num_users'?"),
        ("run.num_users=x", "--set run.num_users is 'x'; it must be a whole number"),
        ("run.num_users=", "--set run.num_users is ''; it must be a whole number"),
        ("run=5", "--set run is not a known option. It is a section of run.model, "),
        ("lengths.think_s=5", "It is a section of lengths.think_s.law, lengths.think_s.value, "),
        ("=5", "--set  is not a known option."),
    ],
)
def test_a_setting_that_means_nothing_is_refused(word: str, message: str) -> None:
    assert message in refusal("--set", word)


def test_a_key_that_is_set_twice_is_refused() -> None:
    assert "tiers.cache_dir is given twice" in refusal(
        "--set", "tiers.cache_dir=/a", "--set", "tiers.cache_dir=/b"
    )


def test_a_value_may_have_an_equals_sign_in_it() -> None:
    assert parse(["--set", "output.note=a=b"]).config().output.note == "a=b"


# --- units -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "unit", "kind", "value"),
    [
        ("10GB", "GiB", float, 10e9 / 2**30),
        ("10GiB", "GiB", float, 10.0),
        ("10gib", "GiB", float, 10.0),
        ("1 TiB", "GiB", float, 1024.0),
        ("1.5GiB", "bytes", int, 1_610_612_736),
        ("0.3kB", "bytes", int, 300),
        ("16777216B", "MiB", int, 16),
        ("9TB", "bytes", int, 9 * 10**12),
        ("1e3MB", "bytes", int, 10**9),
        ("5m", "s", float, 300.0),
        ("5min", "s", float, 300.0),
        ("0.3s", "ms", float, 300.0),
        ("80us", "us", float, 80.0),
        ("80µs", "us", float, 80.0),
        ("1d", "s", float, 86_400.0),
        (".5h", "s", float, 1800.0),
        ("10MB", "MiB", int, None),  # not a whole number of MiB
        ("1.5B", "bytes", int, None),
        ("5m", "GiB", float, None),  # a time
        ("5GB", "s", float, None),  # a size
        ("5M", "s", float, None),  # neither months nor minutes
        ("10Gb", "GiB", float, None),  # bits
        ("10Mib", "GiB", float, None),
        ("10GB/s", "GiB", float, None),
        ("10", "GiB", float, None),  # no unit: read as a bare number before
        ("GB", "GiB", float, None),
        ("1.2.3GB", "GiB", float, None),
        ("-5s", "s", float, None),
        ("1e999GB", "bytes", float, None),
        ("1e9999999999GB", "bytes", float, None),
        ("5GB", "GB/s, 10^9 bytes", float, None),
        ("5s", "tokens", int, None),
        ("5s", None, int, None),
    ],
)
def test_a_number_with_a_unit_is_exact_or_nothing(
    text: str, unit: str | None, kind: type, value: float | None
) -> None:
    number = number_with_unit(text, unit, kind)
    assert number == value
    assert number is None or type(number) is kind


@given(number=st.integers(1, 10**15), unit=st.sampled_from(["B", "KB", "KiB", "GiB", "TB"]))
def test_bytes_with_a_unit_are_whole_and_lose_nothing(number: int, unit: str) -> None:
    factor = {"B": 1, "KB": 1000, "KiB": 1024, "GiB": 2**30, "TB": 10**12}[unit]
    assert number_with_unit(f"{number}{unit}", "bytes", int) == number * factor


@given(st.decimals(0, 86_400, allow_nan=False, places=3), st.sampled_from(["ms", "s", "m"]))
def test_times_are_as_near_as_a_float_can_be(number: Any, unit: str) -> None:
    factor = {"ms": Fraction(1, 1000), "s": Fraction(1), "m": Fraction(60)}[unit]
    assert number_with_unit(f"{number}{unit}", "s", float) == float(Fraction(number) * factor)


@pytest.mark.parametrize("way", ["flag", "set", "environment", "file", "api"])
def test_units_are_read_alike_everywhere(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    argv: list[str] = []
    if way == "flag":
        argv = ["--storage-capacity-gb=8GiB", "--duration=5m"]
    elif way == "set":
        argv = ["--set=tiers.storage_capacity_gib=8GiB", "--set=run.duration_s=5m"]
    elif way == "environment":
        setenv(monkeypatch, {"KV_CACHE_TIERS__STORAGE_CAPACITY_GIB": "8GiB",
                             "KV_CACHE_RUN__DURATION_S": "5m"})  # fmt: skip
    elif way == "file":
        file = tmp_path / "f.yaml"
        file.write_text("tiers: {storage_capacity_gib: 8GiB}\nrun: {duration_s: 5m}\n")
        argv = [f"--config={file}"]
    config = parse(argv).config()
    if way == "api":
        config = load_config(
            overrides={"tiers.storage_capacity_gib": "8GiB", "run.duration_s": "5m"}
        )
    assert config.tiers.storage_capacity_gib == 8
    assert config.run.duration_s == 300


def test_pairs_in_a_file_take_units_too() -> None:
    ranges = {"chatbot": {"think_time_range": ["100ms", 1]}}
    config = from_mapping(Config, {"user_templates": ranges})
    assert config.user_templates.chatbot.think_time_range == (0.1, 1.0)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (
            ["--storage-capacity-gb=5m"],
            "-gb is '5m'; it must be a number of GiB,",
        ),
        (
            ["--duration=5GB"],
            "is '5GB'; it must be a number of s, or one with ns, us, ms",
        ),
        (["--duration=-5s"], "--duration is '-5s'; it must be a number of s"),
        (["--duration=0s"], "--duration is 0.0; it must be a number, above 0"),
        (["--s3-part-mib=5.5MiB"], "--s3-part-mib is '5.5MiB'; it must be a whole number of MiB"),
        (["--s3-part-mib=1GB"], "--s3-part-mib is '1GB'; it must be a whole number of MiB"),
        (["--num-users=5k"], "--num-users is '5k'; it must be a whole number, 1 to 100000"),
        (["--num-users=2.5"], "--num-users is '2.5'; it must be a whole number"),
        (["--num-users=1e3"], "--num-users is '1e3'; it must be a whole number"),
    ],
)
def test_a_unit_that_is_not_the_options_is_refused(argv: list[str], message: str) -> None:
    assert message in refusal(*argv)


def test_a_file_with_a_wrong_unit_names_file_and_key(tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    file.write_text("tiers: {cpu_mem_gib: 5m}\n")
    assert refusal(f"--config={file}").startswith(f"{file}: tiers.cpu_mem_gib is '5m'; it must be")


def test_texts_are_not_numbers_without_a_unit(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is '5'; it must be a whole number"):
        from_mapping(Config, {"run": {"num_users": "5"}})


def test_each_default_of_a_number_reads_back_from_text() -> None:
    for option in describe(Config):
        if option.kind in (int, float) and option.default is not None:
            value = read_text(option, repr(option.default), option.path)
            assert value == value_at(Config(), option.path)


@pytest.mark.parametrize(
    "words",
    [
        "probe --cache-dir . --seconds=--", "lab --policies=--", "compare --json=--",
        "lab --set=--", "report R.json --output=--", "report R.json -o--", "--num-users=--",
        "--config=--", "run --set=-- --num-users 4",
    ],
)  # fmt: skip
def test_two_dashes_are_no_value_of_a_flag_in_any_command(words: str, tmp_path: Path) -> None:
    """Some versions of argparse drop them, so that there is no value; others give them on."""
    code, out, err = cli.called(tmp_path, *words.split())
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert "--: -- is no value; give one" in err


def test_two_dashes_alone_end_the_flags(tmp_path: Path) -> None:
    code, _, err = cli.called(tmp_path, "verify", "--", "--output=--")
    assert code == 2
    assert "--output=--" in err
    assert "no value" not in err
