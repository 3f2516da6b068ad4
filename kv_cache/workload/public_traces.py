"""The public traces that can be read: their publishers, licences, and where to get them.

The project does not redistribute them. Sizes, rows and hashes are what their publishers say, or
with "(counted)" what users of a file have counted; otherwise "not known" or "not published".
`datasets/README.md` has the same table; a test compares.
"""

from collections.abc import Sequence
from functools import partial

from msgspec import Struct

UNKNOWN = "not known"
UNPUBLISHED = "not published"

_RAW = "curl -LO https://raw.githubusercontent.com"
_MOONCAKE = f"{_RAW}/kvcache-ai/Mooncake/main/FAST25-release/traces"
_AZURE = f"{_RAW}/Azure/AzurePublicDataset/master/data"
_AZURE_2024 = (
    "curl -LO https://azurepublicdatasettraces.blob.core.windows.net/azurellminfererencetrace"
)
_BURST = "curl -LO https://github.com/HPMLL/BurstGPT/releases/download/v2.0"
_QWEN = (
    "curl -LO https://media.githubusercontent.com/media/alibaba-edu/"
    "qwen-bailian-usagetraces-anon/main"
)


class PublicTrace(Struct, frozen=True, kw_only=True):
    """One published file, or a set of them. `sha256` is of the whole original."""

    name: str
    format: str
    licence: str
    fetch: str
    size: str = UNKNOWN
    rows: str = UNKNOWN
    sha256: str = UNPUBLISHED


_mooncake = partial(PublicTrace, format="mooncake", licence="Apache-2.0")
_qwen = partial(PublicTrace, format="qwen", licence="Apache-2.0")
_burstgpt = partial(PublicTrace, format="burstgpt", licence="CC-BY-4.0")
_azure = partial(PublicTrace, format="azure", licence="CC-BY-4.0")

PUBLIC_TRACES = (
    _mooncake(
        name="Mooncake, conversation (FAST'25)",
        size="3,029,533 bytes",
        rows="12,031",
        fetch=f"{_MOONCAKE}/conversation_trace.jsonl",
    ),
    _mooncake(
        name="Mooncake, tool and agent (FAST'25)",
        size="4.4 MB",
        rows="23,608",
        fetch=f"{_MOONCAKE}/toolagent_trace.jsonl",
    ),
    _mooncake(
        name="Mooncake, synthetic (FAST'25)",
        size="1,136,313 bytes",
        rows="3,993",
        fetch=f"{_MOONCAKE}/synthetic_trace.jsonl",
    ),
    _qwen(
        name="Qwen-Bailian, coder (ATC'25)",
        size="132,054,902 bytes",
        sha256="3d74974cebb7bccb69b1ca6ea210a44d9a3033443c0271ed015327284dea1aff",
        fetch=f"{_QWEN}/qwen_coder_blksz_16.jsonl",
    ),
    _qwen(
        name="Qwen-Bailian, thinking (ATC'25)",
        size="27,901,454 bytes",
        sha256="41ac36d9d1b54d084eeb6b05e9d142ba9d02f8bf79cfc9fff418d8ab7cdee906",
        fetch=f"{_QWEN}/qwen_thinking_blksz_16.jsonl",
    ),
    _qwen(
        name="Qwen-Bailian, A to customers and B to businesses (ATC'25)",
        fetch="git clone https://github.com/alibaba-edu/qwen-bailian-usagetraces-anon",
    ),
    _burstgpt(
        name="BurstGPT, first two months",
        size="52,283,111 bytes",
        rows="1,429.7 thousand",
        sha256="4bb3783693d0a435686fbfc885615d2349bd067239079fa4b749f2e679e12122",
        fetch=f"{_BURST}/BurstGPT_1.csv",
    ),
    _burstgpt(
        name="BurstGPT, second two months",
        size="144,819,209 bytes",
        rows="3,858.4 thousand",
        sha256="44bf5942b03fca42c01a226a545ad3a750ec62688faecd67b6831c56a8928bf7",
        fetch=f"{_BURST}/BurstGPT_2.csv",
    ),
    _burstgpt(
        name="BurstGPT, 110 further days with sessions",
        size="about 220 MB",
        rows="5,344.0 thousand",
        fetch=f"{_BURST}/BurstGPT_3.csv",
    ),
    _azure(
        name="Azure LLM inference 2023, code",
        size="320,117 bytes",
        rows="8,819",
        fetch=f"{_AZURE}/AzureLLMInferenceTrace_code.csv",
    ),
    _azure(
        name="Azure LLM inference 2023, conversation",
        size="719,188 bytes",
        rows="19,366",
        fetch=f"{_AZURE}/AzureLLMInferenceTrace_conv.csv",
    ),
    _azure(
        name="Azure LLM inference 2024, one week, code",
        size="about 660 MB",
        rows="16,803,695 (counted)",
        fetch=f"{_AZURE_2024}/AzureLLMInferenceTrace_code_1week.csv",
    ),
    _azure(
        name="Azure LLM inference 2024, one week, conversation",
        size="about 1.1 GB",
        fetch=f"{_AZURE_2024}/AzureLLMInferenceTrace_conv_1week.csv",
    ),
    PublicTrace(
        name="SplitwiseSim (made by its script from Azure 2023)",
        format="splitwise",
        licence="MIT",
        size="as asked for",
        rows="as asked for",
        fetch="git clone https://github.com/Mutinifni/splitwise-sim && cd splitwise-sim && "
        "python generate_trace.py",
    ),
    PublicTrace(
        name="ShareGPT V3, unfiltered",
        format="sharegpt",
        licence="see its dataset card",
        size="672,837,942 bytes",
        sha256="35f0e213ce091ed9b9af2a1f0755e9d39f9ccec34ab281cd4ca60d70f6479ba4",
        fetch="curl -LO https://huggingface.co/datasets/anon8231489123/ShareGPT_Vicuna_unfiltered/"
        "resolve/main/ShareGPT_V3_unfiltered_cleaned_split.json",
    ),
    PublicTrace(
        name="kv-cache-tester, sessions of coding agents",
        format="agentic",
        licence="Apache-2.0",
        rows="one session a file, in `traces/`",
        fetch="git clone https://github.com/callanjfox/kv-cache-tester",
    ),
    PublicTrace(
        name="MSR Cambridge block I/O, 36 volumes for a week (FAST'08)",
        format="msr",
        licence="SNIA Trace Data Files Download License",
        sha256="MD5.txt beside the files",
        fetch="from a browser: http://iotta.snia.org/traces/block-io/388",
    ),
)

_HEADINGS = ("trace", "format", "licence", "size", "rows", "SHA-256", "how to fetch")


def markdown() -> str:
    """Return the table of `datasets/README.md`."""
    lines = [_markdown(_HEADINGS), _markdown(["---"] * len(_HEADINGS))]
    for trace in PUBLIC_TRACES:
        sha256 = f"`{trace.sha256}`" if len(trace.sha256) == 64 else trace.sha256
        fetch = trace.fetch if trace.fetch.startswith("from ") else f"`{trace.fetch}`"
        lines.append(_markdown((*_facts(trace), sha256, fetch)))
    return "\n".join(lines) + "\n"


def _facts(trace: PublicTrace) -> tuple[str, ...]:
    return (trace.name, trace.format, trace.licence, trace.size, trace.rows)


def _markdown(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def text() -> str:
    """Return the table for a terminal: a line of facts a trace, and how to fetch it below."""
    heads = _HEADINGS[: len(_facts(PUBLIC_TRACES[0]))]
    rows = [heads, *map(_facts, PUBLIC_TRACES)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [_padded(heads, widths)]
    for trace in PUBLIC_TRACES:
        lines += [_padded(_facts(trace), widths), f"    SHA-256 {trace.sha256}"]
        lines.append(f"    {trace.fetch}")
    return "\n".join(lines) + "\n"


def _padded(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(f"{cell:<{w}}" for cell, w in zip(cells, widths, strict=True)).rstrip()
