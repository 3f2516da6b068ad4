"""A tree as a document that a view shows: its summary, and what each rule found."""

from collections.abc import Sequence
from typing import Any

from kv_cache.config.mlperf import EDITION
from kv_cache.mlperf.aggregate import summarize
from kv_cache.mlperf.rules import TreeFinding, check_tree
from kv_cache.mlperf.tree import Tree
from kv_cache.result.run import SECTION, plain

CHECK_SCHEMA = "kv-cache-mlperf-check/2"


def tree_document(tree: Tree, findings: Sequence[TreeFinding] | None = None) -> dict[str, Any]:
    """Return the document as a reader of its JSON would have it. The rules are checked unless their
    findings are given."""
    rules = [each.to_json() for each in (check_tree(tree) if findings is None else findings)]
    document: dict[str, Any] = plain({SECTION: {**summarize(tree), "rules": rules}})
    return document


def check_document(tree: Tree, findings: Sequence[TreeFinding]) -> dict[str, Any]:
    """Return what the rules found in a tree, for programs."""
    return {
        "schema": CHECK_SCHEMA,
        "tree": str(tree.place.run),
        "division": tree.division,
        "edition": EDITION,
        "rules": [finding.to_json() for finding in findings],
    }
