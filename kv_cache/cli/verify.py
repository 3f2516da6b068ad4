"""`kv-cache.py verify RESULT`: is a result as its run left it, and what is it worth?

Three questions, offline and from the file alone: does the hash chain hold, does everything that can
be computed again come out the same, and what verdict does the evidence give. The file is anybody's:
it is measured and parsed strictly before anything looks at it, and all text out of it is printed
without control characters.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from kv_cache.cli.parsing import CommandParser
from kv_cache.core.errors import UsageError
from kv_cache.core.exits import Exit
from kv_cache.core.text import as_json
from kv_cache.files.reading import DEEPEST, deeper_than, result_bytes
from kv_cache.metrics.passport import Verdict
from kv_cache.result.chain import SECTION, Change, check, file_digest, fingerprint, sealed_files
from kv_cache.result.derive import SCHEMA
from kv_cache.result.ranks import SCHEMA as RANKS_SCHEMA
from kv_cache.result.ranks import recheck_ranks
from kv_cache.result.side_files import RECORDS, SIDE_FILES, recheck_directory
from kv_cache.result.verify import judged_again, recheck, values

_RESULT = "result.json"
_MOST_LINES = 20
_LONGEST_LINE = 500

_EPILOG = """\
What is looked at:
  chain      the hashes of configuration, environment, records, evidence, verdict, measurements and
             the reference's keys, each covering all before it: what was changed is named
  numbers    the whole result is derived again from what it says was counted (operations, requests,
             reuse, windows, kernel counters, evidence) and compared, value by value. In a run's
             directory also ledger and histograms from the records, and config.yaml and
             environment.json against what the result holds. Of several ranks, each one's result
             like this, and the merge of them done again
  verdict    valid, suspect or invalid, with the rule and the numbers behind each reason (!), what
             could not be judged (?), and thresholds that are not at their default (~)

What it cannot find:
  Whoever may write the file can rewrite all of it, hashes included: the chain is no signature. What
  they invent must still agree with itself in everything above. To know that a result is the one you
  saw, note its fingerprint (the last line of the chain) elsewhere and give it to --fingerprint.
  Whoever is root on the machine of the run can have lied to the run itself: to its kernel's
  counters, its clocks, its device.

Exit code: 0 intact, whatever the verdict; 2 something was changed or contradicts itself, or RESULT
is no result of this program. Rules and thresholds: docs/reference/passport.md
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What was found out about one result."""

    path: Path
    document: Mapping[str, Any]
    files: tuple[str, ...]  # of the run's directory that were looked at
    changes: tuple[Change, ...]
    deviations: tuple[str, ...]

    @property
    def intact(self) -> bool:
        return not self.changes and not self.deviations

    @property
    def fingerprint(self) -> str | None:
        return fingerprint(self.document)

    @property
    def verdict(self) -> Verdict:
        """What the evidence gives now; what the result itself says may have been changed."""
        return judged_again(self.document)

    def to_json(self) -> dict[str, Any]:
        verdict = self.verdict.to_json()
        del verdict["rules"]
        return {
            "result": _plain(str(self.path)),
            "intact": self.intact,
            "fingerprint": self.fingerprint,
            **verdict,
            "not_judged": [str(finding) for finding in self.verdict.not_judged],
            "changed": [{"link": link, "says": says} for link, says in self.changes],
            "deviations": list(self.deviations),
            "files": list(self.files),
        }


def main(argv: Sequence[str]) -> int:
    """Verify one result; the exit code. UsageError is the caller's to print."""
    given = _parser().parse_args(list(argv))
    file, _ = _place(Path(given.result))
    document = _document(result_bytes(file), file)
    schema = str(document[SECTION].get("schema"))
    if schema.startswith(_RANKS):
        return _look_at_ranks(document, file, given)
    if schema.startswith(_ONLY_CHAINED):
        return _look_at_chain(document, file, given)
    report = verify(Path(given.result), expected=given.fingerprint)
    if given.json:
        sys.stdout.write(as_json(report.to_json()).decode())
    else:
        print("\n".join(_plain(line) for line in _lines(report)))
    if report.intact:
        return Exit.DONE
    sys.stdout.flush()
    _say_changed(given.result)
    return Exit.REFUSED


def _say_changed(result: str) -> None:
    print(f"kv-cache: {_plain(result)} is not as its run left it; run again, or get the original",
          file=sys.stderr)  # fmt: skip


_RANKS = "kv-cache-ranks/"
_ONLY_CHAINED = (
    *("kv-cache-capacity/", "kv-cache-trials/", "kv-cache-precondition/"),
    *("kv-cache-sweep/", "kv-cache-mlperf/", "kv-cache-trace-stats/", "kv-cache-sim/"),
    "kv-cache-lab/",
)
"""Schemas of documents that are not one run's result: their chain can be checked, and the results
that they name."""
_NOT_AGAIN: Mapping[str, str] = {
    "kv-cache-sweep/": "numbers are not computed again: verify the result.json of a run",
    "kv-cache-mlperf/": "numbers are not computed again: mlperf check looks at the whole tree",
    "kv-cache-trace-stats/": "numbers are not computed again: trace stats of the same trace does",
    "kv-cache-sim/": "numbers are not computed again: sim of the same scenario does",
    "kv-cache-lab/": "numbers are not computed again: lab with the same words does",
}


def _look_at_chain(document: Mapping[str, Any], file: Path, given: argparse.Namespace) -> int:
    own = document[SECTION]
    named = sealed_files(document)
    digests = _digests(document, file.parent) if named else {}
    changes = check(document, digests)
    there = len(named.keys() & digests.keys())
    if given.fingerprint is not None and fingerprint(document) != given.fingerprint:
        changes.append(Change("fingerprint", f"is not {given.fingerprint}"))
    if given.json:
        told = {
            "result": _plain(str(file)), "schema": own["schema"], "intact": not changes,
            "fingerprint": fingerprint(document),
            "changed": [{"link": link, "says": says} for link, says in changes],
            "files_named": len(named), "files_looked_at": there,
        }  # fmt: skip
        sys.stdout.write(as_json(told).decode())
    else:
        plainly = "numbers are not computed again: verify the results of single runs"
        schema = str(own["schema"])
        again = next((says for of, says in _NOT_AGAIN.items() if schema.startswith(of)), plainly)
        state = [f"  ! {link} {says}" for link, says in changes] or [
            "intact    nothing was changed"
        ]
        lines = [
            f"verify    {file} ({own['schema']})",
            f"chain     fingerprint {fingerprint(document) or 'none'}",
            *([f"files     {there} of {len(named)} that it names are there"] if named else []),
            *_capped(state),
            f"          {again}",
        ]
        print("\n".join(_plain(line) for line in lines))
    return Exit.REFUSED if changes else Exit.DONE


def _look_at_ranks(document: Mapping[str, Any], file: Path, given: argparse.Namespace) -> int:
    """Each rank's result as one by itself, and the merge of them done again."""
    schema = document[SECTION]["schema"]
    if schema != RANKS_SCHEMA:
        raise UsageError(
            f"result {file} is of schema {_plain(schema)[:60]}, and this program knows "
            f"{RANKS_SCHEMA}; verify it with the version that wrote it"
        )
    changes = check(document, {})
    if given.fingerprint is not None and fingerprint(document) != given.fingerprint:
        changes.append(Change("fingerprint", f"is not {given.fingerprint}"))
    found = recheck_ranks(document)
    deviations = [*_twice(result_bytes(file), document), *found.deviations]
    again = {} if found.again is None else found.again[SECTION]
    told = {
        "result": _plain(str(file)),
        "schema": schema,
        "intact": not changes and not deviations,
        "fingerprint": fingerprint(document),
        "verdict": again["passport"]["verdict"] if again else None,
        "reasons": again["passport"]["reasons"] if again else [],
        "changed": [{"link": link, "says": says} for link, says in changes],
        "deviations": deviations,
    }
    if given.json:
        sys.stdout.write(as_json(told).decode())
    else:
        print("\n".join(_plain(line) for line in _ranks_lines(told, again.get("ranks", []))))
    if told["intact"]:
        return Exit.DONE
    sys.stdout.flush()
    _say_changed(given.result)
    return Exit.REFUSED


def _ranks_lines(told: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    changed = [f"changed   {change['link']} {change['says']}" for change in told["changed"]]
    wrong = [f"disagrees {deviation}" for deviation in told["deviations"]]
    counted = sum(row["counted"] for row in rows)
    well = (
        f"intact    nothing was changed; each of {counted} results follows from what it counted, "
        "and so does the merge of them"
    )
    return [
        f"verify    {told['result']} ({told['schema']})",
        f"chain     fingerprint {told['fingerprint'] or 'none'}",
        *(f"rank {row['rank']:<4} fingerprint {row['fingerprint'] or 'none'}" for row in rows),
        *([well] if told["intact"] else [*_capped(changed), *_capped(wrong)]),
        f"verdict   {told['verdict'] or 'not known'}",
        *(f"  ! {reason}" for reason in told["reasons"]),
    ]


def verify(path: Path, *, expected: str | None = None) -> Report:
    """Everything about a result file or a run's directory. Raises UsageError."""
    file, directory = _place(path)
    raw = result_bytes(file)
    document = _parsed(raw, file)
    digests = {} if directory is None else _digests(document, directory)
    changes = [*check(document, digests), *_missing(document, directory, digests)]
    if expected is not None and fingerprint(document) != expected:
        changes.append(Change("fingerprint", f"is not {expected}"))
    deviations = [*_twice(raw, document), *recheck(document)]
    if directory is not None:
        deviations += recheck_directory(document, directory)
    looked_at = [n for n in SIDE_FILES if directory is not None and (directory / n).is_file()]
    return Report(
        path=path,
        document=document,
        files=tuple(looked_at),
        changes=tuple(changes),
        deviations=tuple(deviations),
    )


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="kv-cache.py verify",
        description="Check a result offline: was it changed, do its numbers follow from each "
        "other, and what do they prove?",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("result", metavar="RESULT", help="a result file, or a run's directory")
    parser.add_argument(
        "--fingerprint", metavar="HEX", help="the fingerprint that the result must have"
    )
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    return parser


# --- reading a file that anybody may have written --------------------------------------------


def _place(path: Path) -> tuple[Path, Path | None]:
    """The result file, and the run's directory if it lies in one."""
    try:
        if path.is_dir():
            return path / _RESULT, path
        in_run = path.name == _RESULT and (path.parent / "config.yaml").is_file()
    except (OSError, ValueError) as error:
        raise UsageError(f"result {path} cannot be looked at: {_reason(error)}") from None
    return path, path.parent if in_run else None


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return str(error)


def _parsed(raw: bytes, file: Path) -> dict[str, Any]:
    """A run's result."""
    document = _document(raw, file)
    schema = document[SECTION].get("schema")
    if schema != SCHEMA:
        raise UsageError(
            f"result {file} is of schema {_plain(repr(schema))[:60]}, and this program knows "
            f"{SCHEMA}; verify it with the version that wrote it"
        )
    return document


def _document(raw: bytes, file: Path) -> dict[str, Any]:
    try:
        document = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        what = "is empty" if not raw.strip() else f"is cut short or no JSON ({error})"
        raise UsageError(
            f"result {file} {what}; name the file that run wrote to --output"
        ) from None
    if not isinstance(document, dict) or not isinstance(document.get(SECTION), dict):
        raise UsageError(
            f"result {file} is JSON, but no result of this program: it has no section {SECTION}; "
            "name the file that run wrote to --output"
        )
    if deeper_than(document, DEEPEST):
        raise UsageError(f"result {file} is nested deeper than {DEEPEST}, which no result is")
    return document


def _twice(raw: bytes, document: Mapping[str, Any]) -> list[str]:
    """Keys that stand twice, of which readers of JSON take now the first and now the last. A file
    that reads back as it is written has none."""
    if as_json(document) == raw:
        return []
    found: list[str] = []

    def pairs(items: list[tuple[str, Any]]) -> None:
        found.extend(name for name, n in Counter(name for name, _ in items).items() if n > 1)

    try:
        json.loads(raw, object_pairs_hook=pairs, parse_int=str, parse_float=str)
    except RecursionError:  # what stands there twice may be nested as deep as it likes
        return ["a value that stands twice in the file is nested too deep to be looked at"]
    return [f"the key {name} stands twice in one mapping of the file" for name in found]


# --- the run's directory ---------------------------------------------------------------------


def _digests(document: Mapping[str, Any], directory: Path) -> dict[str, str]:
    """Of the records that are there, and of what else the chain names."""
    names = {*RECORDS, *sealed_files(document)}
    try:
        there = [n for n in sorted(names) if _below(n) and (directory / n).is_file()]
        return {name: file_digest(directory / name) for name in there}
    except OSError as error:
        raise UsageError(f"{error.filename} cannot be read: {_reason(error)}") from None


def _below(name: str) -> bool:
    """Whether a name out of a chain stays in the directory of the chain."""
    parts = Path(name).parts
    return bool(parts) and not Path(name).is_absolute() and ".." not in parts and "\0" not in name


def _missing(
    document: Mapping[str, Any], directory: Path | None, digests: Mapping[str, str]
) -> list[Change]:
    if directory is None:
        return []
    gone = [name for name in sealed_files(document) if name not in digests]
    return [Change(name, "is in the chain, but not in the directory") for name in gone]


# --- telling ---------------------------------------------------------------------------------


def _lines(report: Report) -> list[str]:
    verdict = report.verdict
    lines = [
        f"verify    {report.path}",
        f"chain     fingerprint {report.fingerprint or 'none'}",
        *_files_line(report),
        *_state_lines(report),
        f"verdict   {verdict.verdict}",
        *(f"  ! {finding}" for finding in verdict.reasons),
        *(f"  ? {finding}" for finding in verdict.not_judged),
    ]
    changed = verdict.changed_thresholds.items()
    return lines + [f"  ~ {name} is {now:g} (default {was:g})" for name, (now, was) in changed]


def _files_line(report: Report) -> list[str]:
    if report.files:
        return [f"files     {', '.join(report.files)}"]
    return ["files     none: name the run's directory to look at its records too"]


def _state_lines(report: Report) -> list[str]:
    if report.intact:
        count = values(report.document)
        return [f"intact    nothing was changed, and all {count:,} values follow from the counts"]
    changed = [f"changed   {link} {says}" for link, says in report.changes]
    wrong = [f"disagrees {deviation}" for deviation in report.deviations]
    return [*_capped(changed), *_capped(wrong)]


def _capped(lines: list[str]) -> list[str]:
    more = len(lines) - _MOST_LINES
    return [*lines[:_MOST_LINES], f"          and {more} more"] if more > 0 else lines


def _plain(text: str) -> str:
    """Text out of the file, such as a terminal can be shown."""
    shown = "".join(c if c.isprintable() else "?" for c in text)
    return shown if len(shown) <= _LONGEST_LINE else f"{shown[:_LONGEST_LINE]}..."
