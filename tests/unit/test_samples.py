"""The samples: the same files everywhere, of the shape that they claim."""

import gzip
from itertools import pairwise
from pathlib import Path
from statistics import median

import pytest

from kv_cache.cli import main
from kv_cache.core.seed import Seed
from kv_cache.workload.formats import TRACE_FORMATS
from kv_cache.workload.formats.row import TraceRow
from kv_cache.workload.formats.surveying import Survey, survey
from kv_cache.workload.formats.trace_files import Trace, open_trace
from kv_cache.workload.public_traces import PUBLIC_TRACES, markdown, text
from kv_cache.workload.samples import SAMPLE_ROWS, SAMPLES, sample_bytes
from kv_cache.workload.samples.draws import heavy
from tests.traces import ROOT

DATASETS = ROOT / "datasets"


def sample(name: str) -> tuple[Trace, Survey, list[TraceRow]]:
    trace = open_trace(str(DATASETS / name))
    return trace, survey(trace), list(trace.rows())


each = pytest.mark.parametrize("name", sorted(SAMPLES))


@each
def test_regenerating_a_sample_gives_the_same_bytes(name: str) -> None:
    assert sample_bytes(name) == (DATASETS / name).read_bytes()


@each
def test_a_sample_is_told_by_its_content(name: str) -> None:
    assert sample(name)[0].format_name == SAMPLES[name].format


def test_every_format_has_a_sample_and_every_sample_a_line_in_the_readme() -> None:
    assert {sample.format for sample in SAMPLES.values()} == set(TRACE_FORMATS)
    readme = (DATASETS / "README.md").read_text()
    for name, of in SAMPLES.items():
        assert f"| `{name}` | `{of.format}` |" in readme
    shipped = {path.name for path in DATASETS.iterdir()}
    assert shipped == {"README.md", *SAMPLES}


@each
def test_another_seed_gives_another_sample_and_fewer_rows_a_smaller_one(name: str) -> None:
    assert sample_bytes(name, seed=1) != sample_bytes(name)
    assert len(sample_bytes(name, rows=2)) < len(sample_bytes(name))


@pytest.mark.parametrize("name", [n for n, of in SAMPLES.items() if of.rows == SAMPLE_ROWS])
def test_fewer_rows_of_a_stream_are_its_beginning(name: str) -> None:
    fewer = sample_bytes(name, rows=10).removesuffix(b"/dev/nvme0n1 close\n")
    fewer = fewer.rpartition(b"\n")[0] if name == "fio_iolog3_sample.log" else fewer.rstrip()
    assert sample_bytes(name).startswith(fewer)


@each
def test_a_sample_has_no_bad_row_and_nothing_that_surprises(name: str) -> None:
    _, found, rows = sample(name)
    assert found.rows == len(rows) > 0
    assert found.bad_rows == 0
    assert set(found.notes) <= {"failed", "left_out", "unanswered", "empty"}
    if TRACE_FORMATS[SAMPLES[name].format].timed:
        assert found.span_ns > 0


@pytest.mark.parametrize(
    "name", ["mooncake_sample.jsonl", "burstgpt_sample.csv", "burstgpt3_sample.csv",
             "azure_sample.csv", "azure2024_sample.csv", "splitwise_sample.csv",
             "iotrace_sample.csv", "msr_sample.csv"],
)  # fmt: skip
def test_every_row_that_was_asked_for_is_there(name: str) -> None:
    _, found, _ = sample(name)
    left_out = found.notes.get("failed", 0) + found.notes.get("left_out", 0)
    assert found.rows + left_out == SAMPLE_ROWS


def test_the_azure_sample_ends_its_lines_as_the_published_files_do() -> None:
    text = (DATASETS / "azure_sample.csv").read_bytes()
    assert text.count(b"\r\n") == text.count(b"\n") == SAMPLE_ROWS
    assert not text.endswith(b"\n")


def test_the_burstgpt_sample_has_failed_requests() -> None:
    _, found, _ = sample("burstgpt_sample.csv")
    assert 0.06 <= found.notes["failed"] / SAMPLE_ROWS <= 0.10


def prefix_hits(rows: list[TraceRow]) -> tuple[int, int]:
    """Blocks that an unlimited cache has already, and blocks in all."""
    known: set[int | str] = set()
    hits = blocks = 0
    for row in rows:
        ids = row.hash_ids or ()
        hits += next((i for i, one in enumerate(ids) if one not in known), len(ids))
        blocks += len(ids)
        known.update(ids)
    return hits, blocks


def test_prefix_hits_are_counted_as_in_the_known_answer_of_a_small_trace() -> None:
    ids = [(0, 1, 2), (0, 1, 3), (9, 1), (0, 1, 2)]
    assert prefix_hits([TraceRow(1, 0, 1, 1, i, 512) for i in ids]) == (5, 11)


def test_the_mooncake_sample_reuses_as_the_real_trace_does() -> None:
    _, found, rows = sample("mooncake_sample.jsonl")
    hits, blocks = prefix_hits(rows)
    assert 0.35 <= hits / blocks <= 0.45
    assert found.has_hash_ids
    assert found.block_tokens == 512
    assert 5_000 <= median(row.prompt_tokens for row in rows) <= 7_000
    assert max(row.prompt_tokens for row in rows) <= 32_000
    assert max(row.prompt_tokens for row in rows) > 25_000


def test_mooncake_ids_cover_the_prompt_and_name_one_prefix_each() -> None:
    _, _, rows = sample("mooncake_sample.jsonl")
    before: dict[int | str, tuple[int | str, ...]] = {}
    for row in rows:
        ids = row.hash_ids or ()
        assert len(ids) == -(-row.prompt_tokens // 512)
        assert ids[0] == 0
        for place, one in enumerate(ids):
            assert before.setdefault(one, ids[:place]) == ids[:place]
    assert set(before) == set(range(len(before)))


def test_mooncake_requests_come_in_steps_of_three_seconds() -> None:
    _, _, rows = sample("mooncake_sample.jsonl")
    steps = {later.at_ns - row.at_ns for row, later in pairwise(rows)}
    assert steps == {0, 3 * 10**9}


def test_a_heavy_draw_stays_within_its_bounds_and_has_its_median() -> None:
    rng = Seed(1).rng()
    values = [heavy(rng, 100, 0, 10_000) for _ in range(20_000)]
    assert median(values) == pytest.approx(100, rel=0.03)
    assert max(values) <= 10_000
    assert sum(v > 1000 for v in values) / len(values) == pytest.approx(0.0099, rel=0.3)


# --- what the samples hold ---


def test_the_qwen_sample_has_sessions_that_grow_and_branch_and_share_a_system_prompt() -> None:
    _, _, rows = sample("qwen_sample.jsonl")
    parents = [name for row in rows for name in row.after]
    assert len(parents) > 60
    assert len(set(parents)) < len(parents)
    named = {row.name: row for row in rows}
    for row in rows:
        ids = row.hash_ids or ()
        assert len(ids) == -(-row.prompt_tokens // 16)
        for name in row.after:
            before = named[name]
            whole = before.prompt_tokens // 16
            assert ids[:whole] == (before.hash_ids or ())[:whole]
            assert row.prompt_tokens > before.prompt_tokens + before.output_tokens
    hits, blocks = prefix_hits(rows)
    assert 0.2 <= hits / blocks <= 0.7
    assert sum((row.hash_ids or ())[:1] == (0,) for row in rows) > len(rows) / 2


def test_the_third_burstgpt_sample_has_prompts_with_their_history() -> None:
    _, _, rows = sample("burstgpt3_sample.csv")
    said: dict[str, int] = {}
    grown = cut = 0
    for row in rows:
        if row.session is None:
            continue
        if row.session in said:
            grown += row.prompt_tokens > said[row.session]
            cut += row.prompt_tokens <= said[row.session]
        said[row.session] = row.prompt_tokens + row.output_tokens
    assert grown > 5 * cut > 0
    assert sum(row.session is None for row in rows) > 100
    assert sum(row.think_ns is not None for row in rows) == grown + cut


def test_the_agentic_sample_has_sub_agents_in_sub_agents() -> None:
    _, _, rows = sample("agentic_sample.jsonl")
    depths = {(row.name or "").count(".") for row in rows}
    assert depths == {0, 1, 2}
    assert max(len(row.after) for row in rows) > 1
    assert len({row.session for row in rows}) == SAMPLES["agentic_sample.jsonl"].rows


def test_io_samples_read_what_was_written_before() -> None:
    for name in ("iotrace_sample.csv", "lmcache_sample.lct"):
        _, _, rows = sample(name)
        written: set[tuple[int | str, ...] | None] = set()
        for row in rows:
            assert not row.reads or row.hash_ids in written
            if not row.reads:
                written.add(row.hash_ids)
        assert 0.3 < sum(row.reads for row in rows) / len(rows) < 0.9


# --- the command ---


def test_make_writes_every_sample_and_again_changes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "made"
    assert main(["datasets", "make", "--dir", str(place)]) == 0
    assert {p.name: p.read_bytes() for p in place.iterdir()} == {
        name: (DATASETS / name).read_bytes() for name in SAMPLES
    }
    assert "(was there)" not in capsys.readouterr().out
    assert main(["datasets", "make", "--dir", str(place)]) == 0
    assert capsys.readouterr().out.count("(was there)") == len(SAMPLES)


def test_make_writes_only_what_is_named_so_long_and_so_packed(tmp_path: Path) -> None:
    command = ["datasets", "make", "azure", "lmcache", "--dir", str(tmp_path)]
    assert main([*command, "--rows", "7", "--seed", "3", "--pack", "gz"]) == 0
    assert {path.name for path in tmp_path.iterdir()} == {
        "azure_sample.csv.gz", "azure2024_sample.csv.gz", "lmcache_sample.lct.gz"
    }  # fmt: skip
    data = gzip.decompress((tmp_path / "azure_sample.csv.gz").read_bytes())
    assert data == sample_bytes("azure_sample.csv", 3, 7)
    assert survey(open_trace(str(tmp_path / "lmcache_sample.lct.gz"))).rows > 7
    assert main([*command, "--rows", "7", "--pack", "zst"]) == 0
    assert survey(open_trace(str(tmp_path / "azure_sample.csv.zst"))).rows == 7


def test_make_never_writes_over_another_file_and_then_writes_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = tmp_path / "qwen_sample.jsonl"
    own.write_text("mine\n")
    assert main(["datasets", "make", "--dir", str(tmp_path)]) == 2
    assert f"{own}: something else of that name is there" in capsys.readouterr().err
    assert [path.read_text() for path in tmp_path.iterdir()] == ["mine\n"]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["make", "quen"], "there is no trace format 'quen'. Did you mean 'qwen'?"),
        (["make", "--rows", "0"], "--rows is 0; it must be a whole number, 1 to 1000000"),
        (["make", "--seed", "-1"], "--seed is -1; it must be a whole number, 0 to 4294967295"),
        (["make", "--dir", "no/such/place"], "--dir no/such/place: it cannot be created"),
        (["list", "qwen"], "'qwen' belongs to no flag"),
        (["take"], "datasets 'take': there is no such command. Did you mean 'make'?"),
    ],
)
def test_bad_usage_is_one_sentence(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    reason: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["datasets", *arguments]) == 2
    said = capsys.readouterr().err
    assert reason in said
    assert said.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_without_a_word_the_commands_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["datasets"]) == 0
    said = capsys.readouterr().out
    assert "datasets make [FORMAT ...]" in said
    assert "datasets list" in said


def test_list_prints_every_source_and_the_readme_has_the_same_table(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["datasets", "list"]) == 0
    assert capsys.readouterr().out == text()
    for source in PUBLIC_TRACES:
        assert source.format in TRACE_FORMATS
        assert source.name in text()
        assert source.fetch in text()
    assert markdown() in (DATASETS / "README.md").read_text()
