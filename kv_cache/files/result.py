"""What a use case ends with: the document that it made, where it was written, and how it ended."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from kv_cache.core.exits import Exit
from kv_cache.files.keep import Kept
from kv_cache.files.reading import read_document
from kv_cache.result.published import PublishedRun, published
from kv_cache.result.run import SECTION


@dataclass(frozen=True, kw_only=True)
class Result:
    """A document of any kind: of a run, of ranks, trials, a capacity search, and so on.

    `document` is what the file holds (docs/reference/result.md), under today's names. `files` are
    those beside it, by what they are; `recordings` the traces that were written as it went on;
    `trials` the results of a run that was repeated.
    """

    document: Mapping[str, Any]
    kept: Kept | None = None
    end: Exit = Exit.DONE
    files: Mapping[str, str] = field(default_factory=dict)
    recordings: Sequence[Mapping[str, Any]] = ()
    trials: Sequence["Result"] = ()

    @classmethod
    def read(cls, path: Path | str) -> "Result":
        """Return the result in a file, or in a run's directory. Raises UsageError."""
        return cls(document=read_document(Path(path)))

    @property
    def path(self) -> Path | None:
        """Where it was written; None if nowhere, or if it was read."""
        return None if self.kept is None else self.kept.path

    @property
    def section(self) -> Mapping[str, Any]:
        """Everything that is not a key of the MLPerf reference."""
        section: Mapping[str, Any] = self.document[SECTION]
        return section

    @property
    def schema(self) -> str:
        """The kind of document, as `kv-cache-result/9`."""
        return str(self.section["schema"])

    @property
    def verdict(self) -> str | None:
        """`valid`, `suspect` or `invalid`; None of a kind that is not judged."""
        passport = self.section.get("passport")
        return None if passport is None else str(passport["verdict"])

    @cached_property
    def run(self) -> PublishedRun:
        """The numbers of a run, or of ranks, typed; of any schema. Raises MisshapenError."""
        return published(self.section)
