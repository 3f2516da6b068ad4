"""`kv-cache.py trace stats | plot | convert | fit` as a user starts it, and the known answers of
the real traces."""

import gzip
import json
from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from kv_cache.cli import main
from kv_cache.core.seed import Seed
from kv_cache.files.fitted_users import Samples
from kv_cache.workload.samples.hashed_traces import mooncake_lines
from kv_cache.workload.samples.token_traces import burstgpt_lines
from tests.cli import run
from tests.traces import ROOT, made_talks, real_trace


def stats(capsys: pytest.CaptureFixture[str], *words: object) -> Any:
    """The document's own section."""
    capsys.readouterr()
    assert main(["trace", "stats", *map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)["kv_cache"]


def written(path: Path, lines: Iterable[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def chats(path: Path) -> Path:
    """A small ShareGPT file of conversations of 1 to 5 turns."""
    said = [
        {
            "id": f"c{number}",
            "conversations": [
                part
                for turn in range(number % 5 + 1)
                for part in (
                    {"from": "human", "value": "why " * (20 + 7 * turn + number)},
                    {"from": "gpt", "value": "because " * (30 + number)},
                )
            ],
        }
        for number in range(40)
    ]
    path.write_text(json.dumps(said))
    return path


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "mooncake.jsonl", mooncake_lines(Seed(3), 300))
    written(tmp_path / "burst.csv", burstgpt_lines(Seed(4), 3000))
    chats(tmp_path / "chats.json")
    return tmp_path


# --- the real traces -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "rows", "span_s", "p50", "p99", "cv"),
    [("code", 8819, 3435.9, 1469, 7436, 13.2), ("conv_6000", 6000, 1202.2, 1042, 4107, 1.06)],
)
def test_azure_has_its_known_answers(
    capsys: pytest.CaptureFixture[str],
    name: str, rows: int, span_s: float, p50: int, p99: int, cv: float,
) -> None:  # fmt: skip
    own = stats(capsys, real_trace(f"azure_2023_{name}.csv"))
    prompt, arrivals, reuse = own["tokens"]["prompt"], own["arrivals"], own["reuse"]
    assert (own["requests"], prompt["p50"], prompt["p99"]) == (rows, p50, p99)
    assert round(arrivals["span_s"], 1) == span_s
    assert float(f"{arrivals['gap_cv']:.3g}") == cv
    assert (reuse["never_again"], reuse["hits"], own["sessions"]) == (rows, 0, None)


def test_mooncake_has_its_known_answers(capsys: pytest.CaptureFixture[str]) -> None:
    own = stats(capsys, real_trace("mooncake_conversation_6000.jsonl"))
    reuse = own["reuse"]
    assert (reuse["references"], reuse["unique_blocks"]) == (152_537, 99_716)
    assert (reuse["hits"], reuse["prefix_hits"]) == (52_821, 52_821)
    assert round(reuse["hit_ratio"], 4) == 0.3463
    tenth = reuse["lru"][1]
    assert (tenth["blocks"], tenth["hits"], round(tenth["hit_ratio"], 4)) == (9971, 31_657, 0.2075)


def test_tokens_that_are_found_again_are_counted_one_by_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """By hand from the hash ids: a prompt's last block has what the others leave."""
    sample = ROOT / "datasets" / "mooncake_sample.jsonl"
    known: set[int] = set()
    tokens = found = 0
    for row in map(json.loads, sample.read_text().splitlines()):
        tokens += row["input_length"]
        for place, name in enumerate(row["hash_ids"]):
            found += min(512, row["input_length"] - 512 * place) * (name in known)
            known.add(name)
    assert stats(capsys, sample)["reuse"]["token_hit_ratio"] == pytest.approx(found / tokens)


def test_the_agentic_sessions_have_their_known_answers(
    capsys: pytest.CaptureFixture[str],
) -> None:
    own = stats(capsys, real_trace("agentic"))
    reuse = own["reuse"]
    assert (reuse["references"], reuse["hits"], reuse["own_hits"]) == (611_886, 561_082, 561_082)
    assert own["sessions"]["sessions"] == 25
    assert own["sessions"]["think_s"]["count"] > 400


def test_sharegpt_has_its_known_answers(capsys: pytest.CaptureFixture[str]) -> None:
    own = stats(capsys, made_talks(), "--block-tokens", 16)
    told = own["sessions"]
    assert told["sessions"] + own["rows"]["notes"]["empty"] == 400
    assert told["turns"]["total"] == own["requests"] == own["rows"]["good"]
    assert own["arrivals"]["per_s"] is None
    assert own["reuse"]["hits"] == own["reuse"]["own_hits"] > 0


# --- stats -----------------------------------------------------------------------------------


def test_the_summary_fits_a_screen(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", "stats", "mooncake.jsonl"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 28
    assert max(map(len, lines[1:])) <= 110
    assert lines[0].startswith("Trace mooncake.jsonl: TRACE. 300 requests for ")


def test_a_document_is_written_whole_and_can_be_drawn(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    assert main(["trace", "stats", "mooncake.jsonl", "-o", "S.json"]) == 0
    told = json.loads((here / "S.json").read_bytes())["kv_cache"]
    assert told["schema"] == "kv-cache-trace-stats/1"
    assert told == stats(capsys, "mooncake.jsonl")
    assert main(["plot", "S.json"]) == 0
    assert main(["trace", "plot", "mooncake.jsonl"]) == 0
    assert (here / "S.svg").read_bytes() == (here / "mooncake.trace.svg").read_bytes()


@pytest.mark.parametrize("words", [["chats.json"], ["--users"], ["burst.csv"]])
def test_every_kind_of_workload_has_a_picture(here: Path, words: list[str]) -> None:
    pytest.importorskip("matplotlib")
    few = ["--requests", "500", "--block-tokens", "64", "-o", "P.png"]
    assert main(["trace", "plot", *words, *few]) == 0
    assert (here / "P.png").read_bytes().startswith(b"\x89PNG")


def test_the_path_may_stand_at_the_end_and_options_of_run_are_obeyed(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = stats(capsys, "mooncake.jsonl")
    cut = stats(capsys, "--block-tokens", "128", "--model", "tiny-1b", "mooncake.jsonl")
    assert cut["reuse"]["hits"] == 4 * whole["reuse"]["hits"]
    assert cut["model"]["bytes_per_token"] < whole["model"]["bytes_per_token"]
    few = stats(capsys, "mooncake.jsonl", "--requests", 10)
    assert few["requests"] == few["reuse"]["growth"][-1]["requests"] == 10


def test_synthetic_users_have_the_same_numbers(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = ["--users", "--requests", 400, "--num-users", 5, "--block-tokens", 64]
    own = stats(capsys, *said)
    assert own == stats(capsys, *said)
    assert own["requests"] == own["sessions"]["turns"]["total"] == 400
    assert own["sessions"]["step_s"]["least"] > 0.05
    assert 0 < own["reuse"]["lru"][0]["hits"] < own["reuse"]["hits"]
    assert own["rows"] is None


def test_bad_rows_are_counted_where_they_are_skipped(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = written(
        here / "rows.csv",
        ["Timestamp,Request tokens,Response tokens", "1,5,5", "2,x,5", "3,5,0", "1,6,5"],
    )
    rows = stats(capsys, file.name, "--skip-bad-rows")["rows"]
    assert (rows["good"], rows["bad"]) == (2, 1)
    assert rows["notes"] == {"failed": 1}
    assert rows["first_bad"][0]["line"] == 3


# --- convert ---------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".jsonl.zst"])
@pytest.mark.parametrize("name", ["mooncake.jsonl", "burst.csv", "chats.json"])
def test_a_converted_trace_has_the_numbers_of_the_original(
    here: Path, capsys: pytest.CaptureFixture[str], name: str, suffix: str
) -> None:
    if suffix.endswith(".zst"):
        pytest.importorskip("zstandard")
    assert main(["trace", "convert", name, "-o", f"C{suffix}"]) == 0
    before, after = (stats(capsys, file, "--block-tokens", 64) for file in (name, f"C{suffix}"))
    for part in ("requests", "tokens", "arrivals", "sessions", "reuse", "models"):
        assert after[part] == before[part], part
    assert after["rows"]["good"] == before["rows"]["good"]


def test_a_packed_file_is_packed(here: Path) -> None:
    assert main(["trace", "convert", "mooncake.jsonl", "-o", "C.jsonl.gz"]) == 0
    lines = gzip.decompress((here / "C.jsonl.gz").read_bytes()).splitlines()
    assert json.loads(lines[0])["source"] == "mooncake: mooncake.jsonl"
    assert len(lines) == 301


# --- fit -------------------------------------------------------------------------------------


def fitted(name: str, *words: str) -> Any:
    assert main(["trace", "fit", name, "-o", "F.yaml", *words]) == 0
    return yaml.safe_load(Path("F.yaml").read_text())


def test_fitted_users_resemble_a_trace_without_sessions(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Within 10 %: rate, means and medians; within 25 %: the variation of the gaps."""
    config = fitted("burst.csv")
    assert config["workload"] == {"multi_turn": False, "prefix_caching": False}
    trace = stats(capsys, "burst.csv")
    users = stats(capsys, "--users", "--config", "F.yaml", "--requests", 3000)
    for name in ("prompt", "output"):
        for part in ("mean", "p50", "p90"):
            wanted = trace["tokens"][name][part]
            assert users["tokens"][name][part] == pytest.approx(wanted, rel=0.1), (name, part)
    told, made = trace["arrivals"], users["arrivals"]
    assert made["per_s"] == pytest.approx(told["per_s"], rel=0.1)
    assert made["gap_cv"] == pytest.approx(told["gap_cv"], rel=0.25)
    assert users["reuse"]["hits"] == 0


def test_fitted_users_resemble_conversations(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Within 15 %: what an answer has, how many turns, and how many tokens are found again."""
    config = fitted("chats.json", "--block-tokens=16")
    assert config["semantics"] == {"block_tokens": 16}
    assert config["arrival"] == {"mode": "closed"}
    trace = stats(capsys, "chats.json", "--block-tokens", 16)
    users = stats(capsys, "--users", "--config", "F.yaml", "--requests", 3000)
    assert users["tokens"]["output"]["p50"] == pytest.approx(
        trace["tokens"]["output"]["p50"], rel=0.15
    )
    turns = [own["sessions"]["turns"]["mean"] for own in (trace, users)]
    assert turns[1] == pytest.approx(turns[0], rel=0.15)
    reuse = [own["reuse"]["token_hit_ratio"] for own in (trace, users)]
    assert reuse[1] == pytest.approx(reuse[0], rel=0.15)


def agents(path: Path) -> Path:
    """60 sessions of 5 to 15 requests: 40,000 to 160,000 tokens first, then 64 to 640 more each; of
    the later prompts one in eight has no more than what was said."""
    sessions = []
    for number in range(60):
        tokens = 64 * (625 + 1875 * (number * 37 % 60) // 60)
        requests = []
        for turn in range(5 + number * 7 % 11):
            known = range(1000 * number, 1000 * number + tokens // 64)
            asked = {"t": 9.0 * turn, "type": "s", "in": tokens, "out": 64, "hash_ids": [*known]}
            requests.append(asked | {"think_time": 8.0, "api_time": 1.0})
            tokens += 64 * (number + turn) % 640 + 128 if (number + turn) % 8 else 0
        sessions.append({"id": f"s{number}", "block_size": 64, "hash_id_scope": "local",
                         "requests": requests})  # fmt: skip
    return written(path, map(json.dumps, sessions))


def test_fitted_users_begin_as_sessions_do(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Within 10 %: prompts, and how many tokens are found again, of a run and of a cluster."""
    agents(Path("agents.jsonl"))
    laws = fitted("agents.jsonl")["lengths"]
    assert [*laws][:2] == ["first_prompt", "prompt"]
    assert laws["prompt"]["values"][0] == 1
    trace = stats(capsys, "agents.jsonl")
    users = stats(capsys, "--users", "--config", "F.yaml", "--requests", 6000)
    for part in ("mean", "p50", "p90"):
        wanted = trace["tokens"]["prompt"][part]
        assert users["tokens"]["prompt"][part] == pytest.approx(wanted, rel=0.1), part
    again = [each["reuse"]["token_hit_ratio"] for each in (trace, users)]
    assert again[1] == pytest.approx(again[0], rel=0.02)
    sizes = {"instances.gpu.hbm_gib": 4000, "workload.requests": 3000, "workload.fitted": "F.yaml"}
    words = [f"--set={path}={value}" for path, value in sizes.items()]
    capsys.readouterr()
    assert main(["sim", one_policy(), "--preset", "smoke", *words, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)["kv_cache"]["variants"][0]["runs"][0]["facts"]
    asked = facts["tokens"]["prompt"] / facts["requests"]["arrived"]
    assert asked == pytest.approx(trace["tokens"]["prompt"]["mean"], rel=0.1)


def one_policy() -> str:
    """The single node as it is shipped, with the first of its policies alone."""
    scenario = yaml.safe_load((ROOT / "configs/scenarios/single-node.yaml").read_text())
    first = next(iter(scenario["variants"]))
    scenario["variants"] = {first: scenario["variants"][first]}
    Path("one.yaml").write_text(yaml.safe_dump(scenario))
    return "one.yaml"


def talks(path: Path, *, cut: bool) -> Path:
    """60 sessions: those that begin with few tokens have the more requests, 3 to 32. With `cut`
    each third request has 640 tokens alone, of a context of its own."""
    sessions = []
    for number in range(60):
        tokens, requests = 64 * (100 + 40 * number), []
        for turn in range(3 + (59 - number) // 2):
            short = cut and turn % 3 == 2
            asked = 640 if short else tokens
            known = range(10_000 * number, 10_000 * number + asked // 64)
            own = [*(at + 5000 + 100 * turn if short else at for at in known)]
            requests.append({"t": 9.0 * turn, "type": "s", "in": asked, "out": 64, "hash_ids": own,
                             "think_time": 8.0, "api_time": 1.0})  # fmt: skip
            tokens += 64 * (2 + (number * 7 + turn) % 9)
        sessions.append({"id": f"s{number}", "block_size": 64, "hash_id_scope": "local",
                         "requests": requests})  # fmt: skip
    return written(path, map(json.dumps, sessions))


def test_sessions_that_begin_long_have_as_few_requests_as_in_the_trace(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Within 5 %, of a run and of a cluster; drawn independently, prompts are 48 % longer."""
    talks(Path("talks.jsonl"), cut=False)
    laws = fitted("talks.jsonl")["lengths"]
    assert laws["correlation"] < -0.8
    trace = stats(capsys, "talks.jsonl")
    users = stats(capsys, "--users", "--config", "F.yaml", "--requests", 6000)
    for part in ("mean", "p50"):
        wanted = trace["tokens"]["prompt"][part]
        assert users["tokens"]["prompt"][part] == pytest.approx(wanted, rel=0.05), part
    sizes = {"instances.gpu.hbm_gib": 4000, "workload.requests": 6000, "workload.fitted": "F.yaml"}
    words = [f"--set={path}={value}" for path, value in sizes.items()]
    capsys.readouterr()
    assert main(["sim", one_policy(), "--preset", "smoke", *words, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)["kv_cache"]["variants"][0]["runs"][0]["facts"]
    asked = facts["tokens"]["prompt"] / facts["requests"]["arrived"]
    assert asked == pytest.approx(trace["tokens"]["prompt"]["mean"], rel=0.05)


def test_a_fit_says_what_its_users_come_to_and_warns_of_what_is_far_off(
    here: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for cut in (False, True):
        talks(Path("talks.jsonl"), cut=cut)
        caplog.clear()
        fitted("talks.jsonl")
        text = (here / "F.yaml").read_text()
        assert "# What 20,000 of their requests come to:\n# - prompt tokens: mean " in text
        assert "# - tokens found again, %: share " in text
        far = [line for line in caplog.messages if "more than 10 % off the trace" in line]
        assert len(far) == cut
        assert all("prompt tokens: mean " in line for line in far)


def test_a_request_of_no_session_is_one_of_its_own_and_another_context_adds_nothing(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of each five requests two stand alone, and three are of a session, whose second prompt is
    short: 100 and 130 tokens with an answer of 10 in between, so that 20 are added."""
    rows = ["arrived_at,prompt_tokens,output_tokens,session_id"]
    for number in range(60):
        asked = [(500, ""), (500, ""), *((n, f"s{number}") for n in (100, 40, 130))]
        rows += [f"{10 * number + at},{n},10,{who}" for at, (n, who) in enumerate(asked)]
    written(Path("mixed.csv"), rows)
    laws = fitted("mixed.csv", "--block-tokens=16", "--law=empirical")["lengths"]
    assert [laws[name]["values"][-1] for name in ("first_prompt", "prompt", "turns")] == [
        500,
        20,
        3,
    ]
    trace = stats(capsys, "mixed.csv", "--block-tokens", 16)["tokens"]["prompt"]["mean"]
    users = stats(capsys, "--users", "--config", "F.yaml", "--requests", 6000)
    assert users["sessions"]["turns"]["mean"] == pytest.approx(5 / 3, rel=0.1)
    assert users["tokens"]["prompt"]["mean"] < 1.6 * trace


@pytest.mark.parametrize(("longer", "shown"), [(1, False), (5, False), (30, True)])
def test_first_prompts_have_a_law_where_they_are_shown_to_differ(longer: int, shown: bool) -> None:
    """40 first prompts and 80 later ones of 1 to 40 tokens: the test's bound is 0.263."""
    samples = Samples()
    samples.firsts = Counter(range(longer, longer + 40))
    samples.prompts = samples.firsts + Counter([*range(1, 41)] * 2)
    assert samples.begins_otherwise is shown


@pytest.mark.parametrize("law", ["lognormal", "zipf", "empirical"])
def test_a_law_can_be_chosen(here: Path, law: str) -> None:
    config = fitted("burst.csv", f"--law={law}")
    assert {each["law"] for each in config["lengths"].values()} == {law}


def test_a_table_of_lengths_has_the_mean_of_the_trace_whose_longest_are_few(here: Path) -> None:
    """A Pareto law: 10 tokens at the median, 99 at p95, 4,966 the longest."""
    answers = [round(5 * (2000 / (place + 2)) ** 0.999) for place in range(2000)]
    rows = (f"{place},ChatGPT,100,{n},{100 + n},API log" for place, n in enumerate(answers))
    head = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type"
    written(Path("few.csv"), [head, *rows])
    law = fitted("few.csv", "--law=empirical")["lengths"]["output"]
    sides = zip(pairwise(law["quantiles"]), pairwise(law["values"]), strict=True)
    mean = sum((b - a) * (low + high) / 2 for (a, b), (low, high) in sides)
    assert mean == pytest.approx(sum(answers) / len(answers), rel=0.02)


def test_a_fit_says_how_far_it_is_off_and_what_it_loses(here: Path) -> None:
    fitted("mooncake.jsonl")
    text = (here / "F.yaml").read_text()
    assert "KS lognormal 0." in text
    assert "these users ask for each block once (" in text


def test_a_run_takes_a_fitted_configuration(here: Path) -> None:
    fitted("burst.csv")
    ran = run(
        here, "run", "--config=F.yaml", "--virtual-time", "--max-requests=200", "--output=R.json",
        "--gpu-mem-gb=0", "--cpu-mem-gb=0",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    assert ran.result["requests_completed"] == 200


# --- bad input -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("stat x", "Did you mean 'stats'?"),
        ("stats", "no trace is given"),
        ("stats missing.csv", "missing.csv"),
        ("stats empty.csv", "is empty"),
        ("stats bad.csv", "--skip-bad-rows"),
        ("stats mooncake.jsonl more", "'more' belongs to no flag"),
        ("stats mooncake.jsonl --trace x", "both traces"),
        ("stats mooncake.jsonl --users", "leave one of them out"),
        ("stats mooncake.jsonl --requests 0", "--requests is 0"),
        ("stats mooncake.jsonl --dry-run", "--dry-run is for commands that measure"),
        ("stats mooncake.jsonl --blok-tokens 4", "--block-tokens"),
        ("stats mooncake.jsonl --trace-format burst", "burstgpt"),
        ("stats mooncake.jsonl -o no/S.json", "no"),
        ("stats mooncake.jsonl -o .", "regular file"),
        ("plot mooncake.jsonl -o P.jpg", "does not end in .svg"),
        ("plot mooncake.jsonl -o bad.csv", "does not end in .svg"),
        ("plot mooncake.jsonl -o theirs.svg", "did not write"),
        ("convert mooncake.jsonl", "-o"),
        ("convert mooncake.jsonl -o mooncake.jsonl", "did not write"),
        ("stats mooncake.jsonl -o mooncake.jsonl", "none of our results"),
        ("fit mooncake.jsonl -o disk.csv", "none of our results"),
        ("convert mooncake.jsonl -o C.xz", "cannot be packed"),
        ("convert mooncake.jsonl -o C --to csv", "kv-cache"),
        ("convert bad.csv -o C.jsonl", "--skip-bad-rows"),
        ("fit --users", "--users"),
        ("fit disk.csv", "operations on objects"),
        ("fit mooncake.jsonl --law normal", "lognormal"),
    ],
)
def test_bad_input_is_one_sentence_and_nothing_is_written(
    here: Path, capsys: pytest.CaptureFixture[str], line: str, says: str
) -> None:
    written(here / "bad.csv", ["Timestamp,Request tokens,Response tokens", "1,5,5", "2,x,5"])
    written(here / "disk.csv", ["128166372003061629,usr,0,Read,7014609920,24576,41286"])
    (here / "empty.csv").write_text("")
    (here / "theirs.svg").write_text("<svg/>")
    before = {path.name: path.read_bytes() for path in here.iterdir()}
    assert main(["trace", *line.split()]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert says in err, err
    assert err.count("\n") == 1, err
    assert {path.name: path.read_bytes() for path in here.iterdir()} == before


def test_help_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace"]) == 0
    assert "trace convert PATH" in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        main(["trace", "fit", "--help"])
    assert ended.value.code == 0
    assert "Kolmogorov-Smirnov" in capsys.readouterr().out


def test_a_trace_in_seconds_is_told_at_its_own_pace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = (
        json.dumps({"timestamp": number // 2, "input_length": 12_000, "output_length": 20,
                    "hash_ids": [*range(23), 100 + number]})
        for number in range(60)
    )  # fmt: skip
    path = written(tmp_path / "seconds.jsonl", rows)
    found = stats(capsys, path)
    assert found["arrivals"]["span_s"] == 29
    assert found["workload"]["time_unit_from"] == "detected"
    assert stats(capsys, path, "--trace-time-unit", "ms")["arrivals"]["span_s"] == 0.029
    assert main(["trace", "stats", str(path)]) == 0
    assert "60 rows, times in s (detected)" in capsys.readouterr().out


def test_rows_that_are_left_out_are_counted_by_every_command_that_asks_a_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    text = Path(__file__).parents[2].joinpath("datasets", "burstgpt_sample.csv").read_text()
    Path("failed.csv").write_text(f"{text}not,a,row\n")
    reads = ["failed.csv", "--skip-bad-rows", "--block-tokens=16"]
    replays = ["--virtual-time", "--model=tiny-1b", "--cpu-mem-gb=0.1", "--gpu-mem-gb=0"]
    replays += ["--storage-capacity-gb=1", "--output=run.json", "--seed=1", "--duration=20"]
    for words in (
        ["trace", "stats", *reads], ["lab", *reads, "--policies=lru"],
        ["run", "--trace", *reads, *replays],
    ):  # fmt: skip
        assert main(words) == 0
        said = capsys.readouterr().out
        assert "1 bad" in said
        assert "33 failed" in said or "failed 33" in said
        assert "times in s" in said
    own = json.loads(Path("run.json").read_text())["kv_cache"]["workload"]
    assert (own["skipped_bad_rows"], own["notes"]) == (1, {"failed": 33})


@pytest.mark.parametrize(
    ("sample", "wanted"),
    [("mooncake_sample.json", "mooncake-list"), ("mooncake_sample.csv", "mooncake-csv"),
     ("requests_sample.jsonl", "requests-json"), ("requests_ms_sample.json", "requests-json-ms"),
     ("requests_sample.csv", "requests"), ("requests_ms_sample.csv", "requests-ms"),
     ("five_columns_sample.txt", "five-columns")],
)  # fmt: skip
def test_every_command_that_asks_a_trace_reads_every_table_of_requests(
    sample: str, wanted: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    trace = f"datasets/{sample}"
    replays = ["--virtual-time", "--replay-cycles", "1", "--trace-speedup", "0", "--seed", "1",
               "--output", str(tmp_path / "run.json")]  # fmt: skip
    for words in (
        ["trace", "stats", trace], ["lab", trace, "--policies=lru"],
        ["sim", "b13", "--preset", "smoke", "--set", f"workload.trace={trace}"],
        ["run", "--trace", trace, *replays],
    ):  # fmt: skip
        assert main(words) == 0
        assert f"{sample} ({wanted}): " in capsys.readouterr().out
