"""The hash chain of a result: what was changed after the run, by name.

`seal` adds a list of links to the result: its configuration, the environment, each records file,
the evidence, the verdict, the measurements and the reference's keys. Each link has the SHA-256 of
its part and one that also covers all links before it, so the last one represents the whole
result: the fingerprint.

A chain finds what was changed by accident or by hand. It is not a signature: anyone who rewrites a
result can compute it again. `result.verify` then still finds numbers that contradict each other,
and a fingerprint that was noted elsewhere finds everything.
"""

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from kv_cache.core.text import to_json

SECTION = "kv_cache"
CHAIN = "chain"
FILE = "file:"
"""Before the name of a records file in a link's name."""


class Change(NamedTuple):
    """Something that is not as it was when the run ended. `link` is its name in the chain."""

    link: str
    message: str


def seal(document: Mapping[str, Any], files: Mapping[str, str]) -> dict[str, Any]:
    """Return the document with its chain. `files`: SHA-256 (hexadecimal) of each records file by
    name.

    The answer holds plain JSON values only, such as a reader of the file will have.
    """
    plain: dict[str, Any] = orjson.loads(to_json(document))
    digests = {**_digests(plain), **{f"{FILE}{name}": sha for name, sha in files.items()}}
    links, before = [], ""
    for name in sorted(digests):
        before = _chained(before, name, digests[name])
        links.append({"name": name, "sha256": digests[name], "chained": before})
    plain[SECTION] = {**plain[SECTION], CHAIN: links}
    return plain


def fingerprint(document: Mapping[str, Any]) -> str | None:
    """Return the last chained hash, which represents the whole result; None without a sound
    chain."""
    links = _links(document)
    return links[-1]["chained"] if links else None


def sealed_files(document: Mapping[str, Any]) -> dict[str, str]:
    """Return the records files of the chain by name, with their SHA-256."""
    links = _links(document) or []
    return {
        link["name"].removeprefix(FILE): link["sha256"]
        for link in links
        if link["name"].startswith(FILE)
    }


def check(document: Mapping[str, Any], files: Mapping[str, str]) -> list[Change]:
    """Return what was changed since `seal`. `files` are the digests of the files that are there
    now; one of the chain that is not among them is not looked at."""
    links = _links(document)
    if links is None:
        return [Change(CHAIN, "is missing, or not in the right shape")]
    return [*_changed_parts(document, links, files), *_broken_links(links)]


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file of any size, in hexadecimal. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _digests(document: Mapping[str, Any]) -> dict[str, str]:
    """Return the parts of the document, each in exactly one link."""
    section = dict(document[SECTION])
    section.pop(CHAIN, None)
    passport = section.pop("passport", None)
    verdict = dict(passport) if isinstance(passport, Mapping) else {"passport": passport}
    parts = {
        "config": section.pop("config", None),
        "environment": section.pop("environment", None),
        "evidence": verdict.pop("evidence", None),
        "verdict": verdict,
        "measurements": section,
        "reference keys": {key: value for key, value in document.items() if key != SECTION},
    }
    return {name: _sha256(canonical(part)) for name, part in parts.items()}


def canonical(value: Any) -> bytes:
    """Return the one spelling of a plain value: keys in order, no blanks, floats as they read
    back."""
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)


def _changed_parts(
    document: Mapping[str, Any], links: list[dict[str, str]], files: Mapping[str, str]
) -> Iterator[Change]:
    now = _digests(document)
    sealed = {link["name"]: link["sha256"] for link in links}
    for name, digest in now.items():
        if name not in sealed:
            yield Change(name, "has no link in the chain")
        elif sealed[name] != digest:
            yield Change(name, "was changed after the run")
    for name, digest in files.items():
        if f"{FILE}{name}" not in sealed:
            yield Change(name, "is not in the chain: it was added after the run")
        elif sealed[f"{FILE}{name}"] != digest:
            yield Change(name, "was changed after the run")
    for name in sealed:
        if name not in now and not name.startswith(FILE):
            yield Change(name, "is in the chain but not in the result")


def _broken_links(links: list[dict[str, str]]) -> Iterator[Change]:
    names = [link["name"] for link in links]
    if names != sorted(set(names)):
        yield Change(CHAIN, "has links out of order or twice")
    before = ""
    for link in links:
        before = _chained(before, link["name"], link["sha256"])
        if before != link["chained"]:
            yield Change(CHAIN, f"is broken at its link {link['name']}")
            return


def _links(document: Mapping[str, Any]) -> list[dict[str, str]] | None:
    """Return the links, if each is of the right shape."""
    section = document.get(SECTION)
    links = section.get(CHAIN) if isinstance(section, Mapping) else None
    return links if isinstance(links, list) and links and all(map(_is_link, links)) else None


def _is_link(link: object) -> bool:
    return (
        isinstance(link, dict)
        and link.keys() == {"name", "sha256", "chained"}
        and all(isinstance(value, str) for value in link.values())
    )


def _chained(before: str, name: str, digest: str) -> str:
    return _sha256(f"{before}{name}{digest}".encode())


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
