"""Promises: how they are written, and what is none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_cache.core.errors import ConfigError
from kv_cache.core.kinds import Qos
from kv_cache.metrics.slo import Slo, SloMeasure, parse_slos

slos = st.builds(
    Slo,
    qos=st.sampled_from(Qos),
    percent=st.integers(5000, 9999).map(lambda hundredths: hundredths / 100),
    limit_ns=st.integers(1, 2**63 - 1),
    measure=st.sampled_from(SloMeasure),
)


def test_an_slo_is_promises_with_commas_between() -> None:
    assert parse_slos("interactive:p95<50ms, responsive:ttft:p99.9 < 0.2 s,batch:p50<5us") == (
        Slo(qos=Qos.INTERACTIVE, percent=95, limit_ns=50_000_000),
        Slo(qos=Qos.RESPONSIVE, percent=99.9, limit_ns=200_000_000, measure=SloMeasure.TTFT),
        Slo(qos=Qos.BATCH, percent=50, limit_ns=5_000),
    )


def test_response_is_meant_where_nothing_is_said_and_case_does_not_matter() -> None:
    assert parse_slos("Interactive:RESPONSE:P95<50MS") == parse_slos("interactive:p95<50ms")


def test_a_class_may_have_several_promises() -> None:
    text = "interactive:p95<50ms,interactive:p99<90ms,interactive:ttft:p95<50ms"
    assert ",".join(map(str, parse_slos(text))) == text


@given(st.lists(slos, min_size=1, unique_by=lambda p: (p.qos, p.measure, p.percent)))
def test_promises_read_back_as_they_were_written(made: list[Slo]) -> None:
    assert parse_slos(",".join(map(str, made))) == tuple(made)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("interactve:p95<50ms", "'interactve'. Did you mean 'interactive'?"),
        ("all:p95<50ms", "Known: batch, interactive, responsive."),
        ("interactive:tfft:p95<50ms", "Did you mean 'ttft'?"),
        ("interactive:p49<50ms", "'p49' for a percentile, which is one of p50 to p99.99"),
        ("interactive:p99.999<50ms", "p50 to p99.99"),
        ("interactive:p100<50ms", "p50 to p99.99"),
        ("interactive:95<50ms", "'95' for a percentile"),
        ("interactive:p9\u0665<50ms", "for a percentile"),
        ("interactive:mean<50ms", "'mean' for a percentile"),
        ("interactive:p95<50min", "has the unit 'min' for a limit, which is in us, ms or s"),
        ("interactive:p95<50", "without a unit; write 50ms"),
        ("interactive:p95<ms", "'ms' for a limit, which is a number and a unit"),
        ("interactive:p95<-5ms", "'-5ms' for a limit"),
        ("interactive:p95<=50ms", "'=50ms' for a limit"),
        ("interactive:p95<nans", "'nans' for a limit"),
        ("interactive:p95<0ms", "below 1 ns, which nothing keeps"),
        ("interactive:p95<0.0001us", "below 1 ns"),
        ("interactive:p95<999999999999s", "centuries"),
        ("interactive:p95", "has no limit; write one after '<', in quotes"),
        ("interactive:p95<", "has no limit"),
        ("p95<50ms", "is not CLASS:pPERCENT"),
        ("interactive:ttft:p95:p99<50ms", "is not CLASS:pPERCENT"),
        ("interactive:p95<50ms,", "nothing on one side of a comma"),
        ("", "the SLO is empty; write one such as"),
        ("  ", "the SLO is empty"),
        ("batch:p95<5s,batch:response:p95.0<7s", "about the same as 'batch:p95<5000ms'; keep one"),
    ],
)
def test_what_is_no_promise_is_told_with_the_rule_and_a_way_out(text: str, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_slos(text)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)
