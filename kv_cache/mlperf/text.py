"""What a person reads of a tree in ten seconds, and the same as Markdown for pasting."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kv_cache import __version__
from kv_cache.core.units import MISSING
from kv_cache.metrics.judging import Status
from kv_cache.mlperf.rules import GRAVEST_FIRST, STATUS_WORDS, TreeFinding
from kv_cache.view.markdown import safe

MARK = "<!-- kv-cache mlperf summary"
"""How the Markdown begins; it is not shown."""

Json = Mapping[str, Any]

_MOST = 8  # of the reasons of one option
_SIGNS = {
    Status.INVALID: "!",
    Status.NOT_JUDGED: "?",
    Status.PASS: " ",
    Status.NOT_APPLICABLE: "-",
}

_RULES_ROWS = (
    ("storage read", "GiB/s", "aggregated_read_bandwidth_gbps"),
    ("storage write", "GiB/s", "aggregated_write_bandwidth_gbps"),
    ("storage throughput", "tok/s", "aggregated_storage_throughput_tokens_per_sec"),
    ("device read P95, worst rank", "ms", "aggregated_device_read_p95_ms"),
    ("device write P95, worst rank", "ms", "aggregated_device_write_p95_ms"),
)
_SPREAD_ROWS = (
    ("storage read", "GiB/s", "read_bandwidth_gbps"),
    ("storage write", "GiB/s", "write_bandwidth_gbps"),
    ("storage throughput", "tok/s", "storage_throughput_tokens_per_sec"),
    ("output", "tok/s", "avg_throughput_tokens_per_sec"),
)
_POOLED_ROWS = (
    ("device read", "device_read"),
    ("device write", "device_write"),
    ("storage read", "total_read"),
    ("storage write", "total_write"),
    ("response", "response"),
)
_PERCENTILES = ("p50", "p95", "p99", "p999")


# --- a summary -------------------------------------------------------------------------------


def summary_text(summary: Json) -> str:
    """Verdict first; all numbers are in `--json`."""
    lines = [*_head(summary), ""]
    for told in summary["options"].values():
        lines += [*_option(told), ""]
    return "\n".join(lines[:-1])


def _head(summary: Json) -> Iterator[str]:
    options = summary["options"].values()
    valid = [str(told["option"]) for told in options if told["valid"]]
    invalid = [str(told["option"]) for told in options if not told["valid"]]
    word = "COMPLETE" if not invalid else f"INVALID: option {', '.join(invalid)}"
    yield f"mlperf    {word}" + (f"; valid: option {', '.join(valid)}" if valid and invalid else "")
    yield f"tree      {summary['tree']}"
    what = [
        summary["division"] or "division unknown",
        *([f"system {summary['system']}"] if summary["system"] else []),
        _many(summary["total_ranks"], "rank"),
        *([_many(len(summary["hosts"]), "host")] if summary["hosts"] else []),
        _many(summary["trials_per_option"], "trial") + " each",
    ]
    yield f"what      {', '.join(what)}"
    yield from (f"  ! {why}" for why in summary["not_submittable"])
    yield from (f"  ~ not as in CLOSED: {why}" for why in summary["deviations"])


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _option(told: Json) -> Iterator[str]:
    title = f"option {told['option']}  {told['name'] or 'of no known name'}"
    if not told["valid"]:
        yield f"{title}: INVALID, nothing is claimed"
        reasons = told["invalid_because"]
        yield from (f"  ! {row['kind']}: {row['where']} {row['says']}" for row in reasons[:_MOST])
        if reasons[_MOST:]:
            yield f"    and {len(reasons) - _MOST} more"
        return
    yield title
    for label, unit, name in _RULES_ROWS:
        yield f"  {label:<30}{unit:<6}{_shown(told['by_the_rules'][name]):>10}"
    if told["cpu_tier_ranks"]:
        yield f"  ! {len(told['cpu_tier_ranks'])} ranks served everything from RAM"
    yield from (f"  ! {said}" for said in _passports(told))
    yield f"  {'beside the rules':<30}{'':<6}{'median':>10}{'95 % interval of mean':>25}{'CV':>8}"
    for label, unit, name in _SPREAD_ROWS:
        yield _spread_line(label, unit, told["spread"][name])
    heads = "".join(f"{name:>10}" for name in _PERCENTILES)
    yield f"  {'all samples of all ranks, ms':<30}{'count':>6}{heads}"
    for label, name in _POOLED_ROWS:
        yield from _pooled_line(label, told["pooled_ms"][name])


def _passports(told: Json) -> Iterator[str]:
    """That ranks' evidence does not bear the numbers out, where it does not."""
    if told["not_valid"]:
        path, reasons = next(iter(told["not_valid"].items()))
        count = _many(len(told["not_valid"]), "result")
        yield f"not valid by their passports: {count}; {path}: {'; '.join(reasons)}"


def _spread_line(label: str, unit: str, numbers: Json) -> str:
    interval, spread = numbers["interval"], numbers["coefficient_of_variation"]
    between = (
        MISSING if interval is None else f"{_shown(interval['low'])} to {_shown(interval['high'])}"
    )
    varies = MISSING if spread is None else f"{100 * spread:.1f} %"
    return f"  {label:<30}{unit:<6}{_shown(numbers['median']):>10}{between:>25}{varies:>8}"


def _pooled_line(label: str, numbers: Json | None) -> Iterator[str]:
    if numbers is not None:
        shown = "".join(f"{_shown(numbers[name]):>10}" for name in _PERCENTILES)
        yield f"  {label:<28}{numbers['count']:>8}{shown}"


def _shown(value: float | None) -> str:
    if value is None:
        return MISSING
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def summary_markdown(summary: Json) -> str:
    """Tables, with text out of files escaped."""
    lines = [
        f"{MARK} {__version__} -->",
        f"### MLPerf Storage KV cache: {safe(_title(summary))}",
        "",
    ]
    lines += [f"- **not submittable**: {safe(why)}" for why in summary["not_submittable"]]
    lines += [f"- not as in CLOSED: {safe(why)}" for why in summary["deviations"]]
    options = list(summary["options"].values())
    heads = [f"option {told['option']}: {told['name'] or '-'}" for told in options]
    lines += ["", f"| | {' | '.join(map(safe, heads))} |", f"| --- {'| --: ' * len(options)}|"]
    words = ["complete" if told["valid"] else "**INVALID**" for told in options]
    lines.append(f"| | {' | '.join(words)} |")
    for label, unit, name in _RULES_ROWS:
        values = [_of_rules(told, name) for told in options]
        lines.append(f"| {label}, {unit} | {' | '.join(values)} |")
    for label, unit, name in _SPREAD_ROWS:
        values = [_of_spread(told, name) for told in options]
        lines.append(f"| {label}, median of trials (95 % interval), {unit} "
                     f"| {' | '.join(values)} |")  # fmt: skip
    for label, name in _POOLED_ROWS:
        values = [_of_pooled(told, name) for told in options]
        lines.append(f"| {label}, all samples, p50 / p95 / p99 ms | {' | '.join(values)} |")
    for told in options:
        lines += _reasons(told)
    return "\n".join([*lines, ""])


def _title(summary: Json) -> str:
    where = f"{summary['division'] or 'division unknown'}, {summary['total_ranks']} ranks"
    return f"{summary['system'] or summary['tree']} ({where})"


def _of_rules(told: Json, name: str) -> str:
    return _shown(told["by_the_rules"][name]) if told["valid"] else MISSING


def _of_spread(told: Json, name: str) -> str:
    if not told["valid"]:
        return MISSING
    numbers = told["spread"][name]
    interval = numbers["interval"]
    ends = "" if interval is None else f"{_shown(interval['low'])} to {_shown(interval['high'])}"
    return f"{_shown(numbers['median'])} ({ends})" if ends else _shown(numbers["median"])


def _of_pooled(told: Json, name: str) -> str:
    numbers = told["pooled_ms"][name] if told["valid"] else None
    if numbers is None:
        return MISSING
    return " / ".join(_shown(numbers[p]) for p in ("p50", "p95", "p99"))


def _reasons(told: Json) -> Iterator[str]:
    rows = told["invalid_because"]
    if rows:
        yield from ("", f"Option {told['option']} is invalid:", "")
        said = (f"{row['kind']}: {row['where']} {row['says']}" for row in rows[:_MOST])
        yield from (f"- {safe(text)}" for text in said)
    elif told["not_valid"]:
        yield ""
        yield from (f"- option {told['option']}: {safe(said)}" for said in _passports(told))


# --- the rules -------------------------------------------------------------------------------


def check_text(findings: Sequence[TreeFinding], summary: Json) -> str:
    """Each rule with what was seen; what falls short goes first."""
    counts = {status: sum(f.status is status for f in findings) for status in GRAVEST_FIRST}
    told = ", ".join(f"{count} {STATUS_WORDS[status]}" for status, count in counts.items() if count)
    word = "FALLS SHORT" if counts[Status.INVALID] else "NOTHING FALLS SHORT"
    lines = [f"check     {word} ({told})", *list(_head(summary))[1:], ""]
    for status in GRAVEST_FIRST:
        for finding in findings:
            if finding.status is status:
                lines += _finding_lines(finding)
    return "\n".join(lines)


def _finding_lines(finding: TreeFinding) -> Iterator[str]:
    sign = _SIGNS[finding.status]
    yield f"{sign} {finding.rule} ({finding.section}): {STATUS_WORDS[finding.status]}"
    for look in finding.looks[:_MOST]:
        yield f"      {f'{look.where}: ' if look.where else ''}{look.says}"
    if finding.looks[_MOST:]:
        yield f"      and {len(finding.looks) - _MOST} more"
