"""What counts the tokens of texts: the stated rule, and tokenizers with a vocabulary at hand."""

import base64
import hashlib
import importlib
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_cache.config.load import load_config
from kv_cache.config.run_warnings import config_warnings
from kv_cache.core.errors import ConfigError
from kv_cache.installing import install_hint
from kv_cache.workload.formats.tokens import Chars, cache_dir, open_tokens
from kv_cache.workload.formats.trace_files import open_trace

SPECIAL = "<|endoftext|>"


@pytest.mark.parametrize(
    ("text", "tokens"),
    [("", 0), ("a", 1), ("abc", 1), ("abcd", 1), ("abcdefg", 1), ("abcdefgh", 2), ("\xe9" * 9, 2)],
)
def test_characters_are_divided_and_rounded_down_but_a_text_has_one(text: str, tokens: int) -> None:
    assert open_tokens("chars").count(text) == tokens


@given(text=st.text(), per_token=st.floats(0.01, 1e6))
def test_a_text_has_a_token_unless_it_is_empty(text: str, per_token: float) -> None:
    count = Chars(per_token).count(text)
    assert (count == 0) == (text == "")
    assert count <= max(1, len(text) / per_token)


def test_the_rule_says_what_it_is() -> None:
    assert open_tokens("chars", 3.5).facts == {"tokenizer": "chars", "chars_per_token": 3.5}


@pytest.mark.parametrize(
    "wanted", ["", "auto", "gpt2", "char", "chars:4", "tiktoken", "tiktoken:", "hf", "hf:", "x:y"]
)
def test_any_other_word_is_refused_with_what_there_is(wanted: str) -> None:
    with pytest.raises(ConfigError, match=r"--tokenizer\) is '.*one of chars, tiktoken:.*, hf:"):
        open_tokens(wanted)


@pytest.mark.parametrize(
    ("wanted", "package"), [("tiktoken:gpt2", "tiktoken"), ("hf:x", "tokenizers")]
)
def test_a_missing_package_is_named_with_its_extra(
    monkeypatch: pytest.MonkeyPatch, wanted: str, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=f"{re.escape(install_hint(package))}, or use chars"):
        open_tokens(wanted)


# --- tiktoken ---


def vocabulary(*words: bytes) -> bytes:
    """A .tiktoken file: every byte, and some words by the merges that lead to them."""
    tokens = [bytes([value]) for value in range(256)]
    for word in words:
        tokens += [word[:end] for end in range(2, len(word) + 1)]
    lines = (base64.b64encode(token) + b" %d" % rank for rank, token in enumerate(tokens))
    return b"\n".join(lines) + b"\n"


@pytest.fixture
def tiktoken() -> Any:
    return pytest.importorskip("tiktoken", reason="the extra `tiktoken` is not installed")


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty cache, and an error for whoever wants to fetch."""

    def refuse(*args: object, **kwargs: object) -> bytes:
        raise AssertionError("something was to be downloaded")

    monkeypatch.setattr("tiktoken.load.read_file", refuse)
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_local_vocabulary_counts(tiktoken: Any, no_network: Path, tmp_path: Path) -> None:
    data = vocabulary(b"hello", b" world")
    path = tmp_path / "mine.tiktoken"
    path.write_bytes(data)
    tokens = open_tokens(f"tiktoken:{path}")
    texts = {"": 0, "hello": 1, "hello world": 2, "xyz": 3, "\xe9": 2}
    assert {text: tokens.count(text) for text in texts} == texts
    assert tokens.facts == {
        "tokenizer": f"tiktoken:{path}",
        "version": tiktoken.__version__,
        "split_like": "cl100k_base",
        "vocabulary_sha256": hashlib.sha256(data).hexdigest(),
    }


def test_special_tokens_and_half_characters_are_ordinary_text(
    tiktoken: Any, no_network: Path, tmp_path: Path
) -> None:
    path = tmp_path / "o200k_base.tiktoken"
    path.write_bytes(vocabulary())
    tokens = open_tokens(f"tiktoken:{path}")
    assert tokens.facts["split_like"] == "o200k_base"
    assert tokens.count(SPECIAL) == len(SPECIAL)
    assert tokens.count("a\ud800b") >= 3


def test_an_encoding_that_is_not_here_is_refused_and_not_fetched(
    tiktoken: Any, no_network: Path
) -> None:
    with pytest.raises(ConfigError, match=r"cl100k_base is not on this machine.*cl100k_base\.tik"):
        open_tokens("tiktoken:cl100k_base")
    with pytest.raises(ConfigError, match=r"no encoding 'cl100k'.* Did you mean 'cl100k_base'"):
        open_tokens("tiktoken:cl100k")
    assert not no_network.exists()


def test_a_cached_vocabulary_that_is_not_the_expected_one_stays_and_is_refused(
    tiktoken: Any, no_network: Path
) -> None:
    with pytest.raises(ConfigError) as caught:
        open_tokens("tiktoken:cl100k_base")
    (place,) = (word for word in str(caught.value).split() if word.startswith(str(no_network)))
    no_network.mkdir()
    Path(place).write_bytes(vocabulary())
    with pytest.raises(ConfigError, match=r"is not the vocabulary of cl100k_base.*sha256"):
        open_tokens("tiktoken:cl100k_base")
    assert Path(place).exists()


def test_an_encoding_of_the_cache_counts(
    tiktoken: Any, no_network: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With an encoding of our own in place of the public ones, whose files are not ours to ship."""
    url = "https://example.invalid/tiny.tiktoken"

    def tiny() -> dict[str, Any]:
        load = importlib.import_module("tiktoken.load")
        ranks = load.load_tiktoken_bpe(url, expected_hash=hashlib.sha256(data).hexdigest())
        return {
            "name": "tiny",
            "pat_str": r"\S+|\s+",
            "mergeable_ranks": ranks,
            "special_tokens": {},
        }

    data = vocabulary(b"hello")
    public = importlib.import_module("tiktoken_ext.openai_public")
    monkeypatch.setitem(public.ENCODING_CONSTRUCTORS, "tiny", tiny)
    no_network.mkdir()
    (no_network / hashlib.sha1(url.encode()).hexdigest()).write_bytes(data)
    tokens = open_tokens("tiktoken:tiny")
    assert tokens.count("hello hello") == 3
    assert tokens.facts["vocabulary_sha256"] == hashlib.sha256(data).hexdigest()


def test_the_cache_is_where_tiktoken_has_it(tiktoken: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TIKTOKEN_CACHE_DIR", "DATA_GYM_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    assert cache_dir().name in ("tiktoken", "data-gym-cache")
    monkeypatch.setenv("DATA_GYM_CACHE_DIR", "/a")
    assert cache_dir() == Path("/a")
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", "/b")
    assert cache_dir() == Path("/b")


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "256 of the 256 single bytes have no rank"),
        (vocabulary().replace(b"AA== 0\n", b""), "1 of the 256 single bytes"),
        (b"rubbish", "line 1: expected a token in base64 and its rank"),
        (b"AA== x\n", "line 1: expected a token"),
        (b"\x00\xff\n", "line 1: expected a token"),
        (vocabulary() + b"AAA= 7\n", "a rank is twice"),
        (vocabulary() + b"AAA= -7\n", "no vocabulary of tiktoken"),
    ],
)
def test_a_file_that_is_no_vocabulary_is_refused(
    tiktoken: Any, tmp_path: Path, data: bytes, says: str
) -> None:
    path = tmp_path / "v.tiktoken"
    path.write_bytes(data)
    with pytest.raises(ConfigError, match=says):
        open_tokens(f"tiktoken:{path}")
    with pytest.raises(ConfigError, match="cannot be read: no such file"):
        open_tokens(f"tiktoken:{tmp_path / 'gone.tiktoken'}")


# --- Hugging Face ---


@pytest.fixture
def word_level(tmp_path: Path) -> Callable[..., Path]:
    pytest.importorskip("tokenizers", reason="the extra `tokenizers` is not installed")

    def write(**more: Any) -> Path:
        model = {"type": "WordLevel", "vocab": {"a": 0, "b": 1, "?": 2}, "unk_token": "?"}
        path = tmp_path / "tokenizer.json"
        path.write_text(
            json.dumps(
                {
                    "version": "1.0",
                    "added_tokens": [],
                    "normalizer": None,
                    "pre_tokenizer": {"type": "Whitespace"},
                    "post_processor": None,
                    "decoder": None,
                    "truncation": None,
                    "padding": None,
                    "model": model,
                    **more,
                }
            )
        )
        return path

    return write


def test_a_local_tokenizer_counts(word_level: Callable[..., Path]) -> None:
    path = word_level()
    for wanted in (path, path.parent):
        tokens = open_tokens(f"hf:{wanted}")
        texts = {"": 0, "a": 1, "a b": 2, "a b zebra a": 4, " ": 1, "\ud83d": 1}
        assert {text: tokens.count(text) for text in texts} == texts
        assert tokens.facts == {
            "tokenizer": f"hf:{wanted}",
            "version": importlib.import_module("tokenizers").__version__,
            "vocabulary_sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        }


def test_what_a_tokenizer_cuts_or_fills_up_is_counted_as_it_is(
    word_level: Callable[..., Path],
) -> None:
    cut = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    fill = {
        "strategy": {"Fixed": 9}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0,
        "pad_type_id": 0, "pad_token": "?",
    }  # fmt: skip
    tokens = open_tokens(f"hf:{word_level(truncation=cut, padding=fill)}")
    assert tokens.count("a b a b a") == 5
    assert tokens.count("a") == 1


def test_a_file_that_is_no_tokenizer_is_refused(
    word_level: Callable[..., Path], tmp_path: Path
) -> None:
    path = word_level(model={"type": "none"})
    with pytest.raises(ConfigError, match=r"tokenizer\.json is no tokenizer.*give a local"):
        open_tokens(f"hf:{path}")
    path.write_bytes(b"\xff")
    with pytest.raises(ConfigError, match=r"tokenizer\.json is no tokenizer"):
        open_tokens(f"hf:{path}")
    with pytest.raises(ConfigError, match="cannot be read: no such file"):
        open_tokens(f"hf:{tmp_path / 'gone'}")


# --- as an option ---


def test_the_options_say_how_a_dataset_is_read(tmp_path: Path) -> None:
    path = tmp_path / "d.json"
    said = [{"from": "human", "value": "abcdef"}, {"from": "gpt", "value": "ghi"}]
    path.write_text(json.dumps([{"id": n, "conversations": said} for n in range(600)]))
    config = load_config(None, {"workload.dataset_path": str(path)})
    assert config.replays
    assert (str(config.trace_path()), config.trace_format()) == (str(path), "sharegpt")
    reading = config.trace_reading()
    assert (reading.max_sessions, reading.max_context_tokens) == (500, 8192)
    trace = open_trace(str(path), config.trace_format(), reading=reading)
    rows = list(trace.rows())
    assert (len(rows), rows[0].prompt_tokens, rows[0].output_tokens) == (500, 1, 1)
    more = {"workload.max_conversations": 0, "sharegpt.chars_per_token_estimate": 2.0,
            "sharegpt.max_generation_tokens": 1, "workload.use_burst_trace": True}  # fmt: skip
    config = load_config(None, {"workload.dataset_path": str(path), **more})
    assert any("--use-burst-trace" in warning for warning in config_warnings(config))
    assert str(config.trace_path()) == str(path)
    trace = open_trace(str(path), config.trace_format(), reading=config.trace_reading())
    rows = list(trace.rows())
    assert (len(rows), rows[0].prompt_tokens, rows[0].output_tokens) == (600, 3, 1)
    assert trace.reading_facts() == {
        "tokens": {"tokenizer": "chars", "chars_per_token": 2.0},
        "max_context_tokens": 8192,
        "max_generation_tokens": 1,
        "max_sessions": 0,
    }


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"workload.trace": "t.csv"}, "--trace.*--dataset-path.* a run replays one trace"),
        ({"workload.trace_format": "azure"}, "--trace-format.* is 'azure'.*is a ShareGPT file"),
    ],
)
def test_options_that_contradict_a_dataset_are_refused(more: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        load_config(None, {"workload.dataset_path": "d.json", **more})


def test_options_of_a_dataset_without_one_say_that_they_have_no_effect() -> None:
    given = {"workload.max_conversations": 5, "workload.tokenizer": "hf:x"}
    warnings = config_warnings(load_config(None, given))
    assert [warning.split()[0] for warning in warnings] == list(given)
