"""Times of an engine's steps that were measured elsewhere, as a CSV of two grids.

    # vLLM 0.11 on one H100, Llama 3.1 8B, 2026-11-02
    phase,tokens,context,ms
    prefill,512,0,21.4
    decode,16,4096,9.8

prefill: a chunk of `tokens` tokens of one prompt behind `context` others; decode: a step of
`tokens` sequences, each over `context` tokens. Lines that begin with # are comments, and the first
of them says where the times are from. Every failure is a ConfigError with the file and the row.
"""

from collections.abc import Mapping
from hashlib import sha256
from math import isfinite
from pathlib import Path

from msgspec import Struct

from kv_cache.config.schema import show
from kv_cache.config.yaml_files import file_text
from kv_cache.core.errors import ConfigError
from kv_cache.core.units import NS_PER_MS

PHASES = ("prefill", "decode")
_COLUMNS = ["phase", "tokens", "context", "ms"]
_MOST = 10**9  # tokens, and ms


class StepGrid(Struct, frozen=True, kw_only=True):
    """Times in ns, by tokens and by context, each in rising order."""

    tokens: tuple[int, ...]
    contexts: tuple[int, ...]
    rows_ns: tuple[tuple[float, ...], ...]


class StepTable(Struct, frozen=True, kw_only=True):
    """A checked file; `source` is its first comment."""

    file: str
    sha256: str
    source: str | None
    prefill: StepGrid
    decode: StepGrid


def read_step_table(path: str | Path) -> StepTable:
    """Read and check a table. Raises ConfigError."""
    whole = file_text(Path(path))
    lines = list(enumerate(whole.splitlines(), 1))
    comments = [text.lstrip("# ").strip() for _, text in lines if text.startswith("#")]
    rows = [(number, text) for number, text in lines if text.strip() and not text.startswith("#")]
    times: dict[str, dict[tuple[int, int], float]] = {phase: {} for phase in PHASES}
    for place, (number, text) in enumerate(rows):
        where = f"step table {path}, line {number}"
        words = [cell.strip().strip('"') for cell in text.split(",")]
        if place == 0:
            if words != _COLUMNS:
                raise ConfigError(f"{where}: the columns must be {','.join(_COLUMNS)}")
            continue
        _take(words, where, times)
    return StepTable(
        file=str(path),
        sha256=sha256(whole.encode()).hexdigest(),
        source=next(filter(None, comments), None),
        prefill=_grid(times["prefill"], "prefill", path),
        decode=_grid(times["decode"], "decode", path),
    )


def _take(words: list[str], where: str, times: Mapping[str, dict[tuple[int, int], float]]) -> None:
    if len(words) != len(_COLUMNS) or words[0] not in times:
        raise ConfigError(
            f"{where} is {show(','.join(words))}; it must be {' or '.join(PHASES)}, tokens, "
            "context and ms"
        )
    try:
        tokens, context, ms = int(words[1]), int(words[2]), float(words[3])
    except ValueError:
        raise ConfigError(f"{where}: tokens and context must be whole, and ms a number") from None
    if not (1 <= tokens <= _MOST and 0 <= context <= _MOST and isfinite(ms) and 0 < ms <= _MOST):
        raise ConfigError(
            f"{where}: tokens must be at least 1, context at least 0 and ms above 0 (at most 10^9)"
        )
    if (tokens, context) in times[words[0]]:
        raise ConfigError(
            f"{where}: {words[0]} of {tokens} tokens over a context of {context} is there twice; "
            "keep one of them"
        )
    times[words[0]][tokens, context] = ms * NS_PER_MS


def _grid(times: Mapping[tuple[int, int], float], phase: str, path: str | Path) -> StepGrid:
    """Arrange the times of a phase. Raises ConfigError where the grid has a hole."""
    if not times:
        raise ConfigError(
            f"step table {path}: it has no row of {phase}; give both, {' and '.join(PHASES)}"
        )
    tokens = sorted({key[0] for key in times})
    contexts = sorted({key[1] for key in times})
    holes = [(t, c) for t in tokens for c in contexts if (t, c) not in times]
    if holes:
        raise ConfigError(
            f"step table {path}: {phase} has no row of {holes[0][0]} tokens over a context of "
            f"{holes[0][1]} ({len(holes)} of {len(tokens) * len(contexts)} are missing); give one "
            "for each of its tokens with each of its contexts"
        )
    return StepGrid(
        tokens=tuple(tokens),
        contexts=tuple(contexts),
        rows_ns=tuple(tuple(times[t, c] for c in contexts) for t in tokens),
    )
