"""A tree as a document that a view shows: its summary, and what each rule found."""

from typing import Any

from kv_cache.mlperf.aggregate import summarize
from kv_cache.mlperf.rules import check_tree
from kv_cache.mlperf.tree import Tree
from kv_cache.result.run import SECTION, plain


def tree_document(tree: Tree) -> dict[str, Any]:
    """Return the document as a reader of its JSON would have it."""
    rules = [finding.to_json() for finding in check_tree(tree)]
    document: dict[str, Any] = plain({SECTION: {**summarize(tree), "rules": rules}})
    return document
