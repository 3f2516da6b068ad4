"""The flags of `run`: every one of the reference's is mapped, without effect, or refused."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kv_cache.cli import COMMANDS, UNTIL_THE_END, main
from kv_cache.cli.flags import build_parser, parse
from kv_cache.cli.help import FIRST_PAGE, VERSION
from kv_cache.config.load import Invocation, load_config
from kv_cache.config.root import options
from kv_cache.config.unread import value_at
from kv_cache.core.errors import ConfigError
from tests.cli import PROGRAM, ROOT

MAPPED = {
    "--model tiny-1b": ("run.model", "tiny-1b"),
    "--num-users 7": ("run.num_users", 7),
    "--duration 30": ("run.duration_s", 30.0),
    "--gpu-mem-gb 0": ("tiers.gpu_mem_gib", 0.0),
    "--num-gpus 4": ("tiers.num_gpus", 4),
    "--tensor-parallel 1": ("tiers.tensor_parallel", 1),
    "--cpu-mem-gb 4.5": ("tiers.cpu_mem_gib", 4.5),
    "--cache-dir /x": ("tiers.cache_dir", ("/x",)),
    "--cache-dir /x --cache-dir /y": ("tiers.cache_dir", ("/x", "/y")),
    "--erase-device /x --cache-dir /x --layout arena": ("tiers.erase_device", "/x"),
    "--generation-mode none": ("run.generation_mode", "none"),
    "--performance-profile throughput": ("run.performance_profile", "throughput"),
    "--disable-multi-turn": ("workload.multi_turn", False),
    "--disable-prefix-caching": ("workload.prefix_caching", False),
    "--use-burst-trace": ("workload.use_burst_trace", True),
    "--burst-trace-path x.csv": ("workload.burst_trace_path", "x.csv"),
    "--output o.json": ("output.output", "o.json"),
    "--seed 0": ("run.seed", 0),
    "--max-concurrent-allocs 16": ("schedule.max_concurrent_allocs", 16),
    "--request-rate 2": ("arrival.request_rate", 2.0),
    "--max-requests 3": ("run.max_requests", 3),
    "--storage-capacity-gb 1": ("tiers.storage_capacity_gib", 1.0),
    "--trace-time-unit ms": ("workload.trace_time_unit", "ms"),
    "--trace-speedup 0": ("workload.trace_speedup", 0.0),
    "--trace-users 7": ("workload.trace_users", 7),
    "--arrival-scale 0.5": ("workload.arrival_scale", 0.5),
    "--trace-window 5:9": ("workload.trace_window", "5:9"),
    "--trace-history added": ("workload.trace_history", "added"),
    "--prefill-only": ("run.mode", "prefill-only"),
    "--decode-only": ("run.mode", "decode-only"),
    "--arrival-cv 3": ("arrival.cv", 3.0),
    "--slo-ms 100": ("run.slo_ms", 100.0),
    "--latency-dump l.jsonl": ("output.latency_dump", "l.jsonl"),
    "--label L": ("output.label", "L"),
    "--note N": ("output.note", "N"),
    "--io-trace-log ops.csv.zst": ("output.io_trace_log", "ops.csv.zst"),
    "--validation-trace v.json": ("output.validation_trace", "v.json"),
    "--record asked.jsonl": ("output.record", "asked.jsonl"),
    # ours
    "--trace t.csv": ("workload.trace", "t.csv"),
    "--trace-format mooncake": ("workload.trace_format", "mooncake"),
    "--skip-bad-rows": ("workload.skip_bad_rows", True),
    "--trace-block-tokens 64": ("workload.trace_block_tokens", 64),
    "--include-failed-rows": ("workload.include_failed_rows", True),
    "--strict-trace": ("workload.strict_trace", True),
    "--semantics serving": ("semantics.preset", "serving"),
    "--block-tokens 16": ("semantics.block_tokens", 16),
    "--object layer": ("semantics.object", "layer"),
    "--io-engine mmap": ("io.engine", "mmap"),
    "--verify off": ("io.verify", "off"),
    "--eviction fifo": ("tiers.eviction", "fifo"),
    "--admission second-hit": ("policies.admission", "second-hit"),
    "--write-policy through": ("policies.write", "through"),
    "--prefetch successor": ("policies.prefetch", "successor"),
    "--admission-at storage": ("policies.admission_at", "storage"),
    "--io-threads 3": ("io.threads", 3),
    "--s3-endpoint http://host:9000": ("s3.endpoint", "http://host:9000"),
    "--s3-region eu-west-1": ("s3.region", "eu-west-1"),
    "--s3-part-mib 8": ("s3.part_mib", 8),
    "--s3-part-concurrency 2": ("s3.part_concurrency", 2),
    "--arrival open": ("arrival.mode", "open"),
    "--arrival closed": ("arrival.mode", "closed"),
    "--keep-cache": ("tiers.keep_cache", True),
    "--reclaim node7": ("tiers.reclaim", "node7"),
    "--results-dir r": ("output.results_dir", "r"),
    "--records": ("output.records", True),
    "--until 5%": ("run.until", "5%"),
    "--warmup 2": ("run.warmup_s", 2.0),
    "--drain 0": ("run.drain_s", 0.0),
    "--virtual-time": ("run.virtual_time", True),
    "--no-progress": ("output.progress", False),
    "--write-behind": ("semantics.write_behind", True),
    "--no-write-behind": ("semantics.write_behind", False),
    "--promote": ("semantics.promote", True),
    "--no-promote": ("semantics.promote", False),
    "--fsync never": ("io.fsync", "never"),
    "--fsync batch": ("io.fsync", "batch"),
    "--personality mooncake": ("io.personality", "mooncake"),
    "--layout arena": ("io.layout", "arena"),
    "--certify": ("output.certify", True),
    "--fail-on suspect": ("output.fail_on", "suspect"),
    "--fio-export job.fio": ("output.fio_export", "job.fio"),
    "--profile p.yaml": ("sim.profile", "p.yaml"),
    "--predict p.yaml": ("sim.predict", "p.yaml"),
    "--extrapolate": ("sim.extrapolate", True),
    "--enable-autoscaling": ("autoscaler.enabled", True),
    "--autoscaler-mode capacity": ("autoscaler.mode", "capacity"),
    "--autoscaler-mode predictive": ("autoscaler.mode", "predictive"),
    "--target-saturation 0.9": ("autoscaler.target_saturation", 0.9),
    "--precondition": ("precondition.enabled", True),
    "--precondition-size-gb 8": ("precondition.size_gib", 8.0),
    "--precondition-threads 3": ("precondition.threads", 3),
    "--round 30": ("precondition.round_s", 30.0),
    "--max-rounds 0": ("precondition.max_rounds", 0),
    "--enable-latency-tracing": ("monitor.latency_tracing", True),
    "--enable-rag": ("rag.enabled", True),
    "--rag-num-docs 3": ("rag.num_docs", 3),
    "--chunk-reuse prefix": ("rag.reuse", "prefix"),
    "--dataset-path d.json": ("workload.dataset_path", "d.json"),
    "--max-conversations 5": ("workload.max_conversations", 5),
    "--tokenizer hf:t.json": ("workload.tokenizer", "hf:t.json"),
    "--trace-prompts": ("workload.trace_prompts", True),
    "--model-mix tiny-1b=0.7,a=b=1": ("run.model_mix", {"tiny-1b": 0.7, "a=b": 1.0}),
    "--trace-models GPT-4=a": ("workload.trace_models", {"GPT-4": "a"}),
    "--kv-dtype int4": ("run.kv_dtype", "int4"),
    "--kv-bytes-per-token 6880": ("run.kv_bytes_per_token", 6880),
    "--ranks all": ("tiers.ranks", "all"),
    "--xlsx-output s.xlsx": ("output.xlsx_output", "s.xlsx"),
    "--hdr-log l.hlog": ("output.hdr_log", "l.hlog"),
    "--metrics-port 0": ("output.metrics_port", 0),
    "--metrics-host ::1": ("output.metrics_host", "::1"),
    "--json": ("output.json", True),
    "--trials 5": ("run.trials", 5),
    "--trial-cooldown 20": ("run.trial_cooldown_s", 20.0),
    "--clients 3": ("run.clients", 3),
    "--mpi apart": ("run.mpi", "apart"),
    "--clients-timeout 30": ("run.clients_timeout_s", 30.0),
    "--clients-port 4000": ("run.clients_port", 4000),
    "--gpu emulated": ("tiers.gpu", "emulated"),
}

REFUSED = [
    "--nvme-backend cpcs",
    "--cpcs-mode noop",
    *(
        f"{flag} 1"
        for flag in (
            "--cpcs-client", "--cpcs-storage-mode", "--spdk-inventory", "--spdk-rpc-script",
            "--spdk-rpc-python", "--spdk-rpc-socket", "--bootstrap-subsystem-nqn",
            "--cpcs-bootstrap-check", "--cpcs-bootstrap-install-builtins",
            "--cpcs-bootstrap-list-programs", "--cpcs-bootstrap-list-mrs",
            "--cpcs-required-rpc-methods", "--spdk-nvme-passthru", "--trtype", "--traddr",
            "--trsvcid", "--subnqn", "--hostnqn", "--src-addr", "--src-svcid",
            "--passthru-lcores", "--dataset-nsid", "--slm-nsid", "--cpcs-nsid",
            "--cpcs-program-pind", "--cpcs-program-pind-pack-store", "--cpcs-rsid",
            "--cpcs-rsid-batch-read", "--cpcs-auto-create-mrs", "--cpcs-mrs-ranges",
            "--cpcs-mrs-default-length-bytes", "--cpcs-mrs-align-bytes", "--cpcs-mrs-align-mode",
            "--cpcs-load-program-path", "--cpcs-load-program-puid",
            "--cpcs-activate-loaded-program", "--direct-probe-offset", "--direct-probe-length",
            "--direct-probe-lba-bytes", "--cpcs-slm-rw-lba-bytes", "--cpcs-slm-read-address-mode",
            "--cpcs-slm-write-address-mode", "--cpcs-arena-path", "--cpcs-index-path",
            "--cpcs-metrics-output", "--cpcs-verify-every-n", "--cpcs-lossy-tolerance",
            "--cpcs-block-size-kb", "--cpcs-batch-size", "--cpcs-fallback-on-error",
        )
    ),
]  # fmt: skip


def call(line: str) -> Invocation:
    return parse(line.split())


def refusal(line: str) -> str:
    with pytest.raises(ConfigError) as caught:
        call(line)
    assert "\n" not in str(caught.value)
    return str(caught.value)


class TestTable:
    @pytest.mark.parametrize("line", MAPPED)
    def test_mapped(self, line: str) -> None:
        path, value = MAPPED[line]
        overrides = call(line).overrides
        assert overrides[path] == value
        assert type(overrides[path]) is type(value)
        assert path in options()

    @pytest.mark.parametrize("line", REFUSED)
    def test_refused_with_a_reason(self, line: str) -> None:
        text = refusal(line)
        assert line.split()[0] in text
        assert "this version does not have it" in text

    def test_every_flag_of_an_option_is_covered(self) -> None:
        flags = {option.flag for option in options().values() if option.flag}
        assert flags <= {line.split()[0] for line in MAPPED} | {"--replay-cycles"}

    def test_each_flag_lies_about_nothing(self) -> None:
        """A mapped flag leads to that value in the configuration."""
        for line, (path, value) in MAPPED.items():
            needed: dict[str, dict[str, object]] = {
                "arrival.cv": {"arrival.mode": "open"},
                "workload.trace_models": {"run.model_mix": {"a": 1.0}},
            }
            config = load_config(None, {**call(line).overrides, **needed.get(path, {})})
            assert value_at(config, path) == value

    def test_what_is_harmless_is_accepted(self) -> None:
        absent = "--nvme-backend file --cpcs-mode off --cpcs-client mock"
        invocation = call(f"{absent} --log-level debug --config c.yaml")
        assert not invocation.overrides
        assert invocation.log_level == "DEBUG"
        assert invocation.config_path == Path("c.yaml")
        assert invocation.flags == {
            *("--nvme-backend", "--cpcs-mode", "--cpcs-client", "--log-level", "--config"),
        }

    def test_everything_that_is_wrong_is_said_at_once(self) -> None:
        words = "--num-users 0 --duration x --set a.b=1 --set run.seed=-1 --speed 3 --spdk-a 1"
        with pytest.raises(ConfigError) as error:
            call(f"{words} --cpcs-b --trials 0 --generation-mode slow")
        text = str(error.value)
        assert "\n" not in text
        for named in (
            "--num-users is 0",
            "--duration is 'x'",
            "--speed is not a flag.",
            "--trials",
        ):
            assert text.count(named) == 1
        assert "--generation-mode is 'slow'" in text
        assert "--spdk-a, --cpcs-b would use" in text
        assert "--set a.b is not" in text
        assert "--set run.seed is -1" in text

    def test_what_is_wrong_in_the_environment_is_said_at_once(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("KV_CACHE_RUN__NUM_USERS", "0")
        monkeypatch.setenv("KV_CACHE_RUN__SEED", "x")
        with pytest.raises(ConfigError, match=r"NUM_USERS is 0.*; KV_CACHE_RUN__SEED is 'x'"):
            call("")

    def test_a_flag_without_its_value_does_not_hide_what_was_wrong_before_it(self) -> None:
        with pytest.raises(ConfigError, match=r"--num-users is 0.*; --duration: expected one"):
            call("--num-users 0 --duration")

    def test_rules_that_options_break_together_are_said_at_once(self) -> None:
        with pytest.raises(ConfigError) as error:
            call("--tensor-parallel 4 --arrival gamma").config()
        text = str(error.value)
        assert "tiers.tensor_parallel (--tensor-parallel) is 4" in text
        assert "--request-rate" in text


class TestArrival:
    @pytest.mark.parametrize("process", ["fixed", "poisson", "gamma"])
    def test_a_process_means_open_arrivals(self, process: str) -> None:
        overrides = call(f"--arrival {process} --request-rate 3").overrides
        assert overrides["arrival.mode"] == "open"
        assert overrides["arrival.process"] == process
        load_config(None, overrides)

    def test_a_rate_paces_closed_users_too(self) -> None:
        assert "arrival.mode" not in call("--request-rate 3").overrides
        config = load_config(None, call("--arrival closed --request-rate 3").overrides)
        assert (config.arrival.mode, config.arrival.request_rate) == ("closed", 3.0)

    def test_poisson_without_a_rate_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="needs a rate"):
            load_config(None, call("--arrival poisson").overrides)


class TestErrors:
    @pytest.mark.parametrize(
        ("line", "words"),
        [
            ("--num-users nan", ["--num-users is 'nan'", "1 to 100000"]),
            ("--num-users 1.5", ["whole number"]),
            ("--num-users -5", ["--num-users is -5"]),
            ("--gpu-mem-gb nan", ["--gpu-mem-gb is nan", "0 to 65536"]),
            ("--storage-capacity-gb inf", ["is inf"]),
            ("--request-rate -1", ["is -1.0"]),
            ("--seed 4294967296", ["0 to 4294967295"]),
            ("--cache-dir=", ["not empty"]),
            ("--config=", ["--config is empty"]),
            ("--eviction lur", ["Did you mean 'lru'?"]),
            ("--admission secondhit", ["--admission", "Did you mean 'second-hit'?"]),
            ("--admission-at lowest", ["--admission-at", "one of lower, all, storage"]),
            ("--write-policy trough", ["--write-policy", "Did you mean 'through'?"]),
            ("--prefetch sucessor", ["--prefetch", "Did you mean 'successor'?"]),
            ("--num 5", ["ambiguous", "--num-users", "--num-gpus"]),
            ("--nm-users 5", ["--nm-users is not a flag", "Did you mean '--num-users'?"]),
            ("--cluster", ["--cluster is not a flag. Did you mean sim cluster-10k?"]),
            ("--pd --preset dev", ["Did you mean sim unified-vs", "sim SCENARIO --preset?"]),
            ("--model", ["--model", "expected one argument"]),
            ("--prefill-only --decode-only", ["--decode-only", "not allowed", "--prefill-only"]),
            ("stray", ["'stray' belongs to no flag"]),
            ("\N{EN DASH}duration 5", ["is not a flag. Did you mean '--duration'?"]),
            ("\N{EM DASH}duration 5", ["is not a flag. Did you mean '--duration'?"]),
            ("--target-saturation nan", ["0 to 1"]),
        ],
    )
    def test_one_sentence(self, line: str, words: list[str]) -> None:
        text = refusal(line)
        for word in words:
            assert word in text

    @settings(deadline=None)
    @given(st.lists(st.sampled_from(sorted(MAPPED)).map(str.split) | st.text(max_size=6).map(
        lambda text: [text]
    ), max_size=4))  # fmt: skip
    def test_never_anything_but_config_error(self, words: list[list[str]]) -> None:
        argv = [word for group in words for word in group]
        if any(word.startswith(("-h", "--h")) for word in argv):
            return
        message = "fine"
        try:
            load_config(None, parse(argv).overrides)
        except ConfigError as error:
            message = str(error)
        assert message


def test_abbreviations_work() -> None:
    assert call("--mod tiny-1b").overrides == {"run.model": "tiny-1b"}
    assert call("--mod=tiny-1b").overrides == {"run.model": "tiny-1b"}
    assert call("--model-m a=1").overrides == {"run.model_mix": {"a": 1.0}}
    assert call("--no-prog").overrides == {"output.progress": False}


def test_the_april_launcher_is_understood() -> None:
    line = (
        "--model llama3.1-8b --num-users 10 --duration 60 --gpu-mem-gb 16.0 --cpu-mem-gb 32.0 "
        "--generation-mode realistic --performance-profile latency --cache-dir /d --output "
        "r/kvcache_results_1.json --disable-multi-turn --disable-prefix-caching --seed 42"
    )
    invocation = call(line)
    assert len(invocation.overrides) == 12
    load_config(None, invocation.overrides)


def test_all_help_names_every_flag(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse(["--help-all"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    assert text == build_parser().format_help()
    assert "SUPPRESS" not in text
    for option in options().values():
        assert option.flag is None or option.flag in text


def test_both_helps_name_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    for flag in ("--help", "--help-all"):
        with pytest.raises(SystemExit):
            parse([flag])
        told = capsys.readouterr().out.split("\ncommands")[1]
        assert COMMANDS.keys() <= set(told.split())


def test_the_first_page_of_help_names_flags_that_there_are() -> None:
    named = set(re.findall(r"--[a-z][a-z-]+", FIRST_PAGE))
    assert len(named) > 10
    assert named <= set(build_parser()._option_string_actions)


def test_help_and_version_are_printed_before_anything_is_imported() -> None:
    for flag, text in (("--help", FIRST_PAGE), ("--version", VERSION)):
        done = subprocess.run(
            [sys.executable, "-X", "importtime", PROGRAM, flag], capture_output=True, text=True
        )
        assert (done.returncode, done.stdout) == (0, text)
        ours = set(re.findall(r"\| +(kv_cache[\w.]*|numpy|argparse|orjson)\n", done.stderr))
        assert ours == {
            "kv_cache", "kv_cache.cli", "kv_cache.core.exits", "kv_cache.cli.help",
            "kv_cache.cli.early_signal", "kv_cache.cli.streams", "kv_cache.bench",
            "kv_cache.bench.ending_signals",
            "kv_cache.core", "kv_cache.core.errors", "kv_cache.installing",
        }  # fmt: skip


@pytest.mark.parametrize(
    ("line", "near"),
    [
        ("trace stats --users --requets=3", "'--requests'"),
        ("trace fit x.csv --lawx=a", "'--law'"),
        ("capacity --slo x --probee 3", "'--probe'"), ("lab --polices lru", "'--policies'"),
        ("lab --users --block-token 3 --nm-users 5", "'--num-users'"),
    ],
)  # fmt: skip
def test_a_command_with_options_of_its_own_knows_those_as_well(
    line: str, near: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(line.split()) == 2
    assert f"is not a flag. Did you mean {near}?" in capsys.readouterr().err


def test_each_command_takes_signals_over_or_ends_at_once() -> None:
    for name, module in COMMANDS.items():
        source = Path(ROOT, "kv_cache", "cli", f"{module}.py").read_text()
        taken = "interrupts()" in source or name == "mlperf"
        assert taken is (name not in UNTIL_THE_END), name
