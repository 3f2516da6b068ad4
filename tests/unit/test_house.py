"""Laws of the source that keep it livable. What is over a limit today is a budget, which only falls
(unless a decision says why it rises): a test that finds less asks for the lower number."""

import ast
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from benchmarks.detection import WAYS, Way
from benchmarks.mutants import MUTANTS, Mutant
from kv_cache.cli.serve import every_command
from kv_cache.config.root import options
from kv_cache.config.schema import describe
from kv_cache.web.classes import WebClass, scenario_options, web_class
from tests.cli import ROOT

LONGEST_FUNCTION = 70
LONGEST_MODULE = 700
LONGEST_COMMAND = 120

EMPTY_NAMES = frozenset({"found", "told", "said", "own", "given", "made", "asked"})
"""As a variable they say what happened to a value, and not what it is."""


@cache
def parsed(folder: str) -> dict[str, ast.Module]:
    """The modules below a folder, by their path from the root."""
    paths = sorted((ROOT / folder).rglob("*.py"))
    return {str(path.relative_to(ROOT)): ast.parse(path.read_text()) for path in paths}


def nodes(tree: ast.AST, *kinds: type[ast.AST]) -> Iterator[ast.AST]:
    within = walked(tree) if isinstance(tree, ast.Module) else ast.walk(tree)
    return (node for node in within if isinstance(node, kinds))


@cache
def walked(tree: ast.Module) -> list[ast.AST]:
    return list(ast.walk(tree))


def package() -> Iterator[tuple[str, ast.Module]]:
    yield from parsed("kv_cache").items()


def long_functions() -> Iterator[str]:
    for path, tree in package():
        for node in nodes(tree, ast.FunctionDef, ast.AsyncFunctionDef):
            assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            if node.end_lineno and node.end_lineno - node.lineno >= LONGEST_FUNCTION:
                yield f"{path}:{node.lineno} {node.name}"


def long_modules() -> Iterator[str]:
    for path, _ in package():
        count = len((ROOT / path).read_text().splitlines())
        if count > LONGEST_MODULE:
            yield f"{path} ({count})"


def long_commands() -> Iterator[str]:
    """A command parses, calls `app`, prints a view and returns its exit code; it does no more."""
    for path, tree in package():
        if Path(path).parent != Path("kv_cache/cli") or path.endswith("/__init__.py"):
            continue
        count = len((ROOT / path).read_text().splitlines())
        functions = [each for each in tree.body if isinstance(each, ast.FunctionDef)]
        if count > LONGEST_COMMAND and any(each.name == "main" for each in functions):
            yield f"{path} ({count})"


def classes_of_one_name() -> Iterator[str]:
    names = Counter(
        node.name
        for _, tree in package()
        for node in nodes(tree, ast.ClassDef)
        if isinstance(node, ast.ClassDef)
    )
    yield from (f"{name} x{count}" for name, count in names.items() if count > 1)


def untyped_mappings() -> Iterator[str]:
    for path, tree in package():
        if Path(path).parts[1] in ("result", "files"):
            continue
        for node in nodes(tree, ast.Subscript):
            if ast.unparse(node) in ("dict[str, Any]", "Mapping[str, Any]"):
                yield f"{path}:{node.lineno}"  # type: ignore[attr-defined]


def empty_names() -> Iterator[str]:
    for path, tree in package():
        for node in nodes(tree, ast.Name):
            assert isinstance(node, ast.Name)
            if isinstance(node.ctx, ast.Store) and node.id in EMPTY_NAMES:
                yield f"{path}:{node.lineno} {node.id}"


def stray_arguments() -> Iterator[str]:
    for path, tree in package():
        if path == "kv_cache/cli/flags.py":
            continue
        aliases = {  # add = parser.add_argument
            ast.unparse(target)
            for node in nodes(tree, ast.Assign)
            if isinstance(node, ast.Assign) and _adds_arguments(node.value)
            for target in node.targets
        }
        for node in nodes(tree, ast.Call):
            assert isinstance(node, ast.Call)
            if _adds_arguments(node.func) or ast.unparse(node.func) in aliases:
                yield f"{path}:{node.lineno}"


def _adds_arguments(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "add_argument"


LAWS: dict[str, tuple[Callable[[], Iterator[str]], int]] = {
    "functions of more than 70 lines": (long_functions, 0),
    "modules of more than 700 lines": (long_modules, 0),
    "commands of more than 120 lines": (long_commands, 2),
    "class names used twice": (classes_of_one_name, 23),
    "untyped mappings outside of result and files": (untyped_mappings, 331),
    "variables with an empty name": (empty_names, 12),
    "calls of add_argument outside of cli/flags.py": (stray_arguments, 0),
}


@pytest.mark.parametrize("law", LAWS)
def test_a_budget_is_kept_and_falls_with_what_is_found(law: str) -> None:
    find, budget = LAWS[law]
    places = list(find())
    assert len(places) <= budget, f"{law}: {len(places)}, {budget} are allowed; see {places}"
    assert len(places) == budget, f"{law}: lower the budget to {len(places)}"


def first_assert(test: ast.FunctionDef) -> int:
    """The line of the first thing that can fail a test; beyond its end where there is none."""
    lines = [node.lineno for node in nodes(test, ast.Assert) if isinstance(node, ast.Assert)]
    for node in nodes(test, ast.With):
        assert isinstance(node, ast.With)
        if any("raises" in ast.unparse(item) for item in node.items):
            lines.append(node.lineno)
    return min(lines, default=(test.end_lineno or 0) + 1)


def own_returns(test: ast.FunctionDef) -> Iterator[int]:
    """The lines of its returns, without those of functions within it."""
    within = [node for node in nodes(test, ast.FunctionDef, ast.Lambda) if node is not test]
    inner = {id(each) for node in within for each in ast.walk(node)}
    for node in nodes(test, ast.Return):
        if id(node) not in inner:
            assert isinstance(node, ast.Return)
            yield node.lineno


def test_no_test_returns_before_it_asserts() -> None:
    """But those of hypothesis, whose examples may be nothing to the law that is tried."""
    early = []
    for path, tree in parsed("tests").items():
        for node in nodes(tree, ast.FunctionDef):
            assert isinstance(node, ast.FunctionDef)
            marks = [ast.unparse(each) for each in node.decorator_list]
            if not node.name.startswith("test_") or any(m.startswith("given(") for m in marks):
                continue
            if any(line < first_assert(node) for line in own_returns(node)):
                early.append(f"{path}:{node.lineno} {node.name}")
    assert not early, early


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.what)
def test_the_place_of_a_mutant_is_there(mutant: Mutant) -> None:
    """Whoever moves the code that it changes moves the mutant with it."""
    assert mutant.before in (ROOT / mutant.path).read_text()
    assert all((ROOT / test.partition("::")[0]).exists() for test in mutant.tests)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.what)
def test_a_way_to_a_false_number_names_rules_that_its_test_looks_at(way: Way) -> None:
    path, _, name = way.test.partition("::")
    source = (ROOT / path).read_text()
    functions = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
    mine = [ast.get_source_segment(source, node) or "" for node in functions if node.name == name]
    looked_at = mine[0] if name else source
    for rule in way.rules.split(", "):
        assert rule == "verify" or rule in looked_at, f"{way.test} does not look at {rule}"


def test_every_option_has_a_web_class() -> None:
    """Text that an option takes may be a path, a module or a host: a new one is put into the tables
    of kv_cache/web/classes.py, which say what `serve` lets a browser set."""
    for command in every_command():
        for option in describe(command.options):
            assert web_class(command.name, option) in WebClass
    for option in options().values():
        assert web_class("run", option) in WebClass
    for option in scenario_options().values():
        assert web_class("scenario", option) in WebClass
