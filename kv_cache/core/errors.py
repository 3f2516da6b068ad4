"""The errors that the program raises on purpose.

    KvCacheError
    ├── UsageError          bad input: one sentence, exit code 2, nothing written
    │   ├── ConfigError     an option or config key
    │   ├── TraceError      a trace file or one of its rows
    │   └── PlaceError      a directory, an output path, memory or space
    ├── NoAnswerError       a device holds on to a call: given up, exit code 3
    ├── StoreError          a store could not do one operation: becomes `OpDone(ok=False)`
    └── BrokenLawError      the simulator contradicts itself: no result, exit code 1

A failing operation of the measured storage is not an exception past the tier's border: it is a
value, a row in the record and a line in the report.
"""

from collections.abc import Callable, Iterable

from kv_cache.core.exits import Exit


class KvCacheError(Exception):
    """Root of the tree."""


class UsageError(KvCacheError):
    """Input that breaks a rule; the message names the input, the rule and a way out."""

    exit = Exit.REFUSED


class ConfigError(UsageError):
    """An option, a flag or a config key."""


class TraceError(UsageError):
    """A trace file: missing, empty, of the wrong shape, or with bad rows."""


class PlaceError(UsageError):
    """A directory or file of the run, or memory and space for it."""


class NoAnswerError(KvCacheError):
    """A call on storage has not returned for too long, and is not waited for any more. The message
    names the call and where it was made; its thread is left behind."""

    exit = Exit.NO_ANSWER


class StoreError(KvCacheError):
    """One operation of one store failed. `reason` is a short stable word for counting; the call had
    moved `moved_bytes` before."""

    def __init__(self, reason: str, detail: str = "", moved_bytes: int = 0) -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.moved_bytes = moved_bytes


class BrokenLawError(KvCacheError):
    """A law of the simulation does not hold: an error of the program, not of its input. The message
    names the law, the instant and the seed."""

    exit = Exit.EARLY


def refusals(checks: Iterable[Callable[[], object]]) -> list[ConfigError]:
    """Return why options are wrong by these checks, each of which looks at something else."""
    wrong = []
    for check in checks:
        try:
            check()
        except ConfigError as error:
            wrong.append(error)
    return wrong


def refuse(wrong: Iterable[ConfigError]) -> None:
    """Raise ConfigError with everything that is wrong, if anything is."""
    if sentences := dict.fromkeys(map(str, wrong)):
        raise ConfigError("; ".join(sentences))


def os_reason(error: BaseException) -> str:
    """Return what the system says of an error, as it stands within a sentence of ours."""
    return (getattr(error, "strerror", None) or str(error)).lower()


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """` Did you mean 'x'?` when something is near, else the list of what is known."""
    from difflib import get_close_matches  # slow to import, and seldom needed

    choices = sorted(known)
    near = get_close_matches(word, choices, n=1, cutoff=0.6)
    if near:
        return f" Did you mean {near[0]!r}?"
    return f" Known: {', '.join(choices)}." if choices else ""
