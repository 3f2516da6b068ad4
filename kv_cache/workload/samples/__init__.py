"""Small traces of real shape, made from a seed: for `datasets/`, for tests and for trying out.

They have the columns, units, line ends and the rough distributions of the public traces whose
format they share, and none of their data. They must not be cited as those traces. The same seed
and number of rows give the same bytes on every machine (`draws`).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from types import MappingProxyType

from msgspec import Struct

from kv_cache.core.seed import Seed
from kv_cache.workload.formats import TRACE_FORMATS
from kv_cache.workload.formats.canonical import Header, header_line, row_line
from kv_cache.workload.samples.hashed_traces import (
    mooncake_csv_lines,
    mooncake_lines,
    mooncake_list_lines,
    qwen_lines,
)
from kv_cache.workload.samples.io_traces import (
    blkparse_lines,
    fio2_lines,
    fio3_lines,
    iotrace_lines,
    lmcache_bytes,
    msr_lines,
)
from kv_cache.workload.samples.session_traces import agentic_lines, messages_lines, sharegpt_text
from kv_cache.workload.samples.token_traces import (
    azure2024_lines,
    azure_lines,
    burstgpt3_lines,
    burstgpt_lines,
    five_column_lines,
    request_json_lines,
    request_json_list,
    request_lines,
    request_ms_lines,
    splitwise_lines,
)

SAMPLE_SEED = 20
SAMPLE_ROWS = 400


class Sample(Struct, frozen=True, kw_only=True):
    """One file: its format, and what makes its bytes. A `row` of a trace of sessions is a session,
    of LMCache's and blkparse's a request of several records."""

    format: str
    make: Callable[[Seed, int], bytes]
    rows: int = SAMPLE_ROWS


def sample_bytes(name: str, seed: int = SAMPLE_SEED, rows: int | None = None) -> bytes:
    """Return the whole file `name` of `SAMPLES`; the same arguments give the same bytes."""
    sample = SAMPLES[name]
    return sample.make(Seed(seed).child("samples", name), sample.rows if rows is None else rows)


def _lined(
    lines: Callable[[Seed, int], Iterable[str]], end: str = "\n", *, last: bool = True
) -> Callable[[Seed, int], bytes]:
    """Return what makes bytes of lines, with `end` behind each, or behind all but the last."""

    def make(seed: Seed, rows: int) -> bytes:
        return (end.join(lines(seed, rows)) + (end if last else "")).encode()

    return make


def _canonical_lines(of: str, seed: Seed, rows: int) -> Iterator[str]:
    """Yield the lines of the sample `of` in our own format."""
    sample = SAMPLES[of]
    trace_format = TRACE_FORMATS[sample.format]
    data = sample.make(seed, rows)
    text = (
        [(1, data.decode())] if trace_format.document else enumerate(data.decode().split("\n"), 1)
    )
    trace_rows = list(trace_format.rows(text, lambda line, reason: None))
    header = Header(
        grouped=trace_format.grouped,
        timed=trace_format.timed,
        block_tokens=max((row.block_tokens for row in trace_rows), default=0),
        source=of,
    )
    yield header_line(header)
    for row in trace_rows:
        yield row_line(row, header)


def _in_our_own(name: str, of: str, rows: int) -> Sample:
    return Sample(format=name, rows=rows, make=_lined(partial(_canonical_lines, of)))


SAMPLES: Mapping[str, Sample] = MappingProxyType(
    {
        "mooncake_sample.jsonl": Sample(format="mooncake", make=_lined(mooncake_lines)),
        "mooncake_sample.json": Sample(
            format="mooncake-list", rows=60, make=_lined(mooncake_list_lines, last=False)
        ),
        "mooncake_sample.csv": Sample(
            format="mooncake-csv", rows=60, make=_lined(mooncake_csv_lines)
        ),
        "qwen_sample.jsonl": Sample(format="qwen", rows=250, make=_lined(qwen_lines)),
        "burstgpt_sample.csv": Sample(format="burstgpt", make=_lined(burstgpt_lines)),
        "burstgpt3_sample.csv": Sample(format="burstgpt", make=_lined(burstgpt3_lines)),
        # As published: CRLF, and nothing behind the last row.
        "azure_sample.csv": Sample(format="azure", make=_lined(azure_lines, "\r\n", last=False)),
        "azure2024_sample.csv": Sample(format="azure", make=_lined(azure2024_lines)),
        "splitwise_sample.csv": Sample(format="splitwise", make=_lined(splitwise_lines)),
        "five_columns_sample.txt": Sample(
            format="five-columns", rows=200, make=_lined(five_column_lines)
        ),
        "requests_sample.csv": Sample(format="requests", rows=200, make=_lined(request_lines)),
        "requests_ms_sample.csv": Sample(
            format="requests-ms", rows=200, make=_lined(request_ms_lines)
        ),
        "requests_sample.jsonl": Sample(
            format="requests-json", rows=100, make=_lined(request_json_lines)
        ),
        "requests_ms_sample.json": Sample(
            format="requests-json-ms", rows=100, make=_lined(request_json_list, last=False)
        ),
        "sharegpt_sample.json": Sample(
            format="sharegpt", rows=40, make=lambda seed, rows: sharegpt_text(seed, rows).encode()
        ),
        "messages_sample.jsonl": Sample(format="sharegpt", rows=20, make=_lined(messages_lines)),
        "agentic_sample.jsonl": Sample(format="agentic", rows=8, make=_lined(agentic_lines)),
        "kv_cache_sample.jsonl": _in_our_own("kv-cache", "qwen_sample.jsonl", 100),
        "kv_cache_untimed_sample.jsonl": _in_our_own(
            "kv-cache-untimed", "fio_iolog2_sample.log", 100
        ),
        "kv_cache_sessions_sample.jsonl": _in_our_own(
            "kv-cache-sessions", "agentic_sample.jsonl", 4
        ),
        "kv_cache_sessions_untimed_sample.jsonl": _in_our_own(
            "kv-cache-sessions-untimed", "sharegpt_sample.json", 40
        ),
        "iotrace_sample.csv": Sample(format="iotrace", make=_lined(iotrace_lines, "\r\n")),
        "lmcache_sample.lct": Sample(format="lmcache", rows=20, make=lmcache_bytes),
        "msr_sample.csv": Sample(format="msr", make=_lined(msr_lines)),
        "blkparse_sample.txt": Sample(format="blkparse", rows=80, make=_lined(blkparse_lines)),
        "fio_iolog3_sample.log": Sample(format="fio-iolog3", make=_lined(fio3_lines)),
        "fio_iolog2_sample.log": Sample(format="fio-iolog2", make=_lined(fio2_lines)),
    }
)
