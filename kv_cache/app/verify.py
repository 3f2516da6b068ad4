"""Is a result as its run left it, and what is it worth?

Three questions, offline and from the file alone: does the hash chain hold, does everything that can
be derived again come out the same, and what verdict does the evidence give. The file is anybody's:
it is measured and parsed strictly before anything looks at it.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kv_cache.app.sweep_document import recheck_sweep
from kv_cache.config.schema import opt
from kv_cache.core.errors import UsageError, os_reason
from kv_cache.core.text import as_json, printable
from kv_cache.files.reading import RESULT_FILE, parsed, result_bytes
from kv_cache.result.capacity import recheck_capacity
from kv_cache.result.chain import SECTION, Change, check, file_digest, fingerprint, sealed_files
from kv_cache.result.derive import SCHEMA
from kv_cache.result.kinds import CAPACITY, PRECONDITIONING, SWEEP, TRIALS
from kv_cache.result.metrics import Json
from kv_cache.result.preconditioning import recheck_preconditioning
from kv_cache.result.published import RANKS
from kv_cache.result.ranks import recheck_ranks
from kv_cache.result.side_files import RECORDS, SIDE_FILES, recheck_directory
from kv_cache.result.trials import recheck_trials
from kv_cache.result.verification import (
    ChainVerification,
    RanksVerification,
    RunVerification,
    Verification,
)
from kv_cache.result.verify import recheck

_RANKS = "kv-cache-ranks/"
_ONLY_CHAINED = (
    *("kv-cache-capacity/", "kv-cache-trials/", "kv-cache-precondition/"),
    *("kv-cache-sweep/", "kv-cache-mlperf/", "kv-cache-trace-stats/", "kv-cache-sim/"),
    "kv-cache-lab/",
    "kv-cache-lab-tiers/",
)
"""Schemas of documents of which the chain is checked, and the files that it names; those of trials
are made again where these files are there."""

Again = Callable[[Json, Mapping[str, Json], Mapping[str, str]], Sequence[str]]
"""Says what in a document does not follow from files that it names, by their digests."""


@dataclass(frozen=True, kw_only=True)
class VerifyOptions:
    """What is verified, and what it must be."""

    result: str = opt(
        "-", "Result file, or a run's directory", flag="RESULT", metavar="PATH", required=True
    )
    fingerprint: str | None = opt(
        None, "Fingerprint that the result must have", flag="--fingerprint", metavar="HEX"
    )
    json: bool = opt(False, "Print the findings as JSON", flag="--json")


def verify(options: VerifyOptions) -> Verification:
    """Verify a result, by what its schema allows. Raises UsageError for what is not a result."""
    path = Path(options.result)
    file, directory = _place(path)
    data = result_bytes(file)
    document = _document(data, file)
    schema = str(document[SECTION].get("schema"))
    if schema.startswith(_RANKS):
        return _verify_ranks(document, data, file, options.fingerprint)
    if schema.startswith(_ONLY_CHAINED):
        again = recheck_trials if schema == TRIALS else None
        return _verify_chain(document, file, options.fingerprint, again)
    _require_schema(document, SCHEMA, file)
    digests = {} if directory is None else _digests(document, directory)
    files = [name for name in SIDE_FILES if directory is not None and (directory / name).is_file()]
    return RunVerification(
        path=path,
        document=document,
        files=tuple(files),
        changes=(
            *check(document, digests),
            *_missing(document, directory, digests),
            *_other_than(options.fingerprint, document),
        ),
        deviations=(
            *_duplicates(data, document),
            *recheck(document),
            *(recheck_directory(document, directory) if directory is not None else ()),
        ),
    )


def _verify_ranks(
    document: Json, data: bytes, file: Path, expected: str | None
) -> RanksVerification:
    """Verify each rank's result as one by itself, and do the merge of them again."""
    _require_schema(document, RANKS, file)
    rechecked = recheck_ranks(document)
    return RanksVerification(
        path=file,
        document=document,
        changes=(*check(document, {}), *_other_than(expected, document)),
        deviations=(*_duplicates(data, document), *rechecked.deviations),
        merged={} if rechecked.again is None else rechecked.again[SECTION],
    )


def _verify_chain(
    document: Json, file: Path, expected: str | None, again: Again | None
) -> ChainVerification:
    """Verify the chain, and by `again`, where all files are there that the document was made from,
    that it follows from them."""
    named = sealed_files(document)
    digests = _digests(document, file.parent) if named else {}
    whole = again is not None and bool(named) and named.keys() <= digests.keys()
    deviations: Sequence[str] = ()
    if again is not None and whole:
        parts = {name: file.parent / name for name in named}
        read = {name: _result(path) for name, path in parts.items()}
        deviations = again(document, read, digests)
    schema = document[SECTION].get("schema")
    if schema == CAPACITY:
        deviations = recheck_capacity(document)
    elif schema == PRECONDITIONING:
        deviations = recheck_preconditioning(document)
    elif schema == SWEEP:
        deviations = recheck_sweep(document, lambda name: _result(file.parent / name), digests)
    return ChainVerification(
        path=file,
        document=document,
        changes=(*check(document, digests), *_other_than(expected, document)),
        deviations=tuple(deviations),
        named=len(named),
        present=len(named.keys() & digests.keys()),
        derived=whole,
    )


def _other_than(expected: str | None, document: Json) -> list[Change]:
    if expected is None or fingerprint(document) == expected:
        return []
    return [Change("fingerprint", f"is not {expected}")]


# --- reading a file that anybody may have written --------------------------------------------


def _place(path: Path) -> tuple[Path, Path | None]:
    """Return the result file, and the run's directory if it is in one."""
    try:
        if path.is_dir():
            return path / RESULT_FILE, path
        in_run = path.name == RESULT_FILE and (path.parent / "config.yaml").is_file()
    except (OSError, ValueError) as error:
        raise UsageError(f"result {path} cannot be looked at: {os_reason(error)}") from None
    return path, path.parent if in_run else None


def _result(path: Path) -> Json:
    return _document(result_bytes(path), path)


def _document(data: bytes, file: Path) -> Json:
    document = parsed(data, file)
    if not isinstance(document, dict) or not isinstance(document.get(SECTION), dict):
        raise UsageError(
            f"result {file} is JSON, but not a result of this program: it has no section "
            f"{SECTION}; name the file that run wrote to --output"
        )
    return document


def _require_schema(document: Json, schema: str, file: Path) -> None:
    if document[SECTION].get("schema") != schema:
        actual = printable(repr(document[SECTION].get("schema")))[:60]
        raise UsageError(
            f"result {file} is of schema {actual}, and this program knows {schema}; verify it with "
            "the version that wrote it"
        )


def _duplicates(data: bytes, document: Json) -> list[str]:
    """Return a sentence for each duplicate key: some readers of JSON take the first, and some the
    last. A file that reads back as it is written has none."""
    if as_json(document) == data:
        return []
    keys: list[str] = []

    def pairs(items: list[tuple[str, Any]]) -> None:
        keys.extend(name for name, n in Counter(name for name, _ in items).items() if n > 1)

    try:
        json.loads(data, object_pairs_hook=pairs, parse_int=str, parse_float=str)
    except RecursionError:  # the value of a duplicate key may be nested to any depth
        return ["the value of a duplicate key in the file is nested too deep to be checked"]
    return [f"duplicate key {name} in one mapping of the file" for name in keys]


# --- the run's directory ---------------------------------------------------------------------


def _digests(document: Json, directory: Path) -> dict[str, str]:
    """Return the digests of the records that are there, and of what else the chain names."""
    names = {*RECORDS, *sealed_files(document)}
    try:
        present = [n for n in sorted(names) if _is_below(n) and (directory / n).is_file()]
        return {name: file_digest(directory / name) for name in present}
    except OSError as error:
        raise UsageError(f"{error.filename} cannot be read: {os_reason(error)}") from None


def _is_below(name: str) -> bool:
    """Return whether a name out of a chain stays in the directory of the chain."""
    parts = Path(name).parts
    return bool(parts) and not Path(name).is_absolute() and ".." not in parts and "\0" not in name


def _missing(document: Json, directory: Path | None, digests: Mapping[str, str]) -> list[Change]:
    if directory is None:
        return []
    names = [name for name in sealed_files(document) if name not in digests]
    return [Change(name, "is in the chain, but not in the directory") for name in names]
