"""Rules on the directories of a submission: what lies where, and what is said of the system."""

from collections.abc import Iterator
from pathlib import Path

from kv_cache.config.mlperf import EDITION
from kv_cache.core.errors import UsageError
from kv_cache.metrics.judging import Look, invalid, unknown, well
from kv_cache.mlperf.launcher import metadata_files
from kv_cache.mlperf.layout import NOBODY, SENTINEL, as_name
from kv_cache.mlperf.plan import CLOSED, OPEN
from kv_cache.mlperf.systems import flaws_of_description
from kv_cache.mlperf.tree import Tree


def _outside_a_submission() -> Look:
    return unknown("the sequence does not lie in <division>/<org>/results/<system>/kv_cache")


def by_mlpstorage(tree: Tree) -> Iterator[Look]:
    if tree.launch is not None:
        yield well("is mlpstorage's record of the sequence", tree.launch.name)
        return
    for path in metadata_files(tree.place.run):
        yield invalid("is no record of mlpstorage of this benchmark", tree.place.name(path))
    else:
        yield unknown(
            "the rules want mlpstorage to make the tree, and this one has nothing of it; run the "
            "same under mlpstorage, or ask the working group"
        )


def submitter(tree: Tree) -> Iterator[Look]:
    org = tree.place.org
    if org is None:
        yield _outside_a_submission()
    elif org == NOBODY or as_name(org) != org:
        yield invalid("is no submitter's name; give --org, or rename the directory", org)
    else:
        yield well(org)


def top_level(tree: Tree) -> Iterator[Look]:
    submitter = tree.place.submitter
    if submitter is None:
        yield _outside_a_submission()
        return
    yield from _nothing_else(submitter.parents[1], {CLOSED, OPEN, SENTINEL}, needed=set())


def required(tree: Tree) -> Iterator[Look]:
    submitter = tree.place.submitter
    if submitter is None:
        yield _outside_a_submission()
        return
    wanted = {"results", "systems"} | ({"code"} if tree.place.division == CLOSED else set())
    yield from _nothing_else(submitter, wanted, needed=wanted)


_LATER = ("code-images", "provenance.json", "submission.yaml")
"""Names of rules that came after this edition."""


def _nothing_else(directory: Path, allowed: set[str], needed: set[str]) -> Iterator[Look]:
    there = {path.name for path in directory.iterdir() if not path.name.startswith(".")}
    for name in sorted(there.intersection(_LATER)):
        yield unknown(f"is of later rules than {EDITION}, which are judged", str(directory / name))
    for name in sorted(needed - there):
        yield invalid(f"has no directory {name}", str(directory))
    for name in sorted(there - allowed - {*_LATER}):
        yield invalid(f"is none of {', '.join(sorted(allowed))}", str(directory / name))
    yield well(f"{', '.join(sorted(there & allowed))}", str(directory))


def code(tree: Tree) -> Iterator[Look]:
    path = tree.place.code
    if path is None:
        yield _outside_a_submission()
        return
    where = tree.place.name(path)
    if not path.is_dir():
        yield invalid("is not there; mlpstorage makes it", where)
    elif not (path / _CODE_HASH).is_file():
        yield invalid(f"has no {_CODE_HASH}", where)
    ran = "" if tree.launch is None or tree.launch.program is None else (
        f"; it is mlpstorage's own, and what ran is {tree.launch.program}, kv-cache "
        f"{', '.join(sorted({r.program_version for r in tree.ranks}))}: say so to the reviewers"
    )  # fmt: skip
    yield unknown(f"whether the copy is what its hash says is mlpstorage's to check{ran}", where)


_CODE_HASH = ".code-hash.json"


def systems_files(tree: Tree) -> Iterator[Look]:
    path = tree.place.description
    if path is None:
        yield _outside_a_submission()
        return
    for wanted in (path, path.with_suffix(".pdf")):
        if not wanted.is_file():
            yield invalid("is not there", tree.place.name(wanted))
    yield well("both descriptions are there", tree.place.name(path))


def described(tree: Tree) -> Iterator[Look]:
    path = tree.place.description
    if path is None or not path.is_file():
        yield unknown("there is no description to look into")
        return
    try:
        flaws = list(flaws_of_description(path, tree.place.system))
    except UsageError as error:
        flaws = [f"cannot be read: {error}"]
    yield from (invalid(flaw, tree.place.name(path)) for flaw in flaws)
    yield well("is filled in", tree.place.name(path))


def division(tree: Tree) -> Iterator[Look]:
    path, recorded = tree.place.division, tree.recorded_division
    if path is None or recorded is None:
        yield unknown("path and record do not both say whether this is closed or open")
    elif path != recorded:
        message = f"was run as {recorded}, and lies under {path}/, by which it is judged"
        yield invalid(message, tree.record_name or "")
    else:
        yield well(f"{path} by path and record")
