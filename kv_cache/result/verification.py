"""What `verify` found about a document: what was changed, what contradicts itself, and what its
evidence is worth."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from kv_cache.core.text import printable
from kv_cache.metrics.passport import Verdict
from kv_cache.result.chain import SECTION, Change, fingerprint
from kv_cache.result.metrics import Json
from kv_cache.result.verify import judged_again

LONGEST_PATH = 500
"""That is shown of one that anybody may have named."""


@dataclass(frozen=True, kw_only=True)
class CheckedDocument:
    """A document whose chain was checked; `deviations` are sentences about numbers that do not
    follow from the counts."""

    path: Path
    document: Json
    changes: tuple[Change, ...]
    deviations: tuple[str, ...] = ()

    @property
    def intact(self) -> bool:
        return not self.changes and not self.deviations

    @property
    def fingerprint(self) -> str | None:
        return fingerprint(self.document)

    @property
    def schema(self) -> str:
        return str(self.document[SECTION].get("schema"))

    def identity(self) -> dict[str, Any]:
        """Return what begins the JSON of every kind."""
        return {
            "result": printable(str(self.path), longest=LONGEST_PATH),
            "schema": self.schema,
            "intact": self.intact,
            "fingerprint": self.fingerprint,
        }

    @property
    def changed(self) -> list[dict[str, str]]:
        return [{"link": link, "message": message} for link, message in self.changes]


@dataclass(frozen=True, kw_only=True)
class RunVerification(CheckedDocument):
    """The result of one run; `files` are those of its directory that were checked."""

    files: tuple[str, ...]

    @cached_property
    def verdict(self) -> Verdict:
        """The verdict that the evidence gives now; the one in the result may have been changed."""
        return judged_again(self.document)

    def to_json(self) -> dict[str, Any]:
        verdict = self.verdict.to_json()
        del verdict["rules"]
        identity = self.identity()
        del identity["schema"]
        return {
            **identity,
            **verdict,
            "not_judged": [str(finding) for finding in self.verdict.not_judged],
            "changed": self.changed,
            "deviations": list(self.deviations),
            "files": list(self.files),
        }


@dataclass(frozen=True, kw_only=True)
class RanksVerification(CheckedDocument):
    """The result of several ranks; `merged` is the section of their merge, done again, or empty if
    it cannot be done."""

    merged: Json

    @property
    def verdict(self) -> str | None:
        return self.merged["passport"]["verdict"] if self.merged else None

    @property
    def reasons(self) -> list[str]:
        return self.merged["passport"]["reasons"] if self.merged else []

    @property
    def ranks(self) -> Sequence[Json]:
        return self.merged["ranks"] if self.merged else []

    def to_json(self) -> dict[str, Any]:
        return {
            **self.identity(),
            "verdict": self.verdict,
            "reasons": self.reasons,
            "changed": self.changed,
            "deviations": list(self.deviations),
        }


@dataclass(frozen=True, kw_only=True)
class ChainVerification(CheckedDocument):
    """A document of another kind. `named` files are in its chain, of which `present` are beside it;
    `derived`: its numbers were derived again from them."""

    named: int
    present: int
    derived: bool

    def to_json(self) -> dict[str, Any]:
        return {
            **self.identity(),
            "changed": self.changed,
            "deviations": list(self.deviations),
            "files_named": self.named,
            "files_looked_at": self.present,
        }


Verification = RunVerification | RanksVerification | ChainVerification
