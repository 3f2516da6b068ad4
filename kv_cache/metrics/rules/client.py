"""V13, V15 and V25: whether the client was fast enough for the number to be the device's."""

from collections.abc import Iterator
from math import inf

from kv_cache.metrics.ceiling import ceiling_sentence
from kv_cache.metrics.evidence import Evidence, Thresholds
from kv_cache.metrics.judging import Look, Status, invalid, nothing, suspect, unknown, well
from kv_cache.metrics.rules.readings import SHORT_WINDOW_S, on_objects, percent

_ASKED_SHARE = 0.95  # of the requested rate
_ENOUGH_FOR_P99 = 1000  # values of which ten lie beyond p99
_FEW_UNFINISHED = 0.1  # of the requests, where an open load is kept up with


def client(e: Evidence, t: Thresholds) -> Iterator[Look]:
    used, cores = e.number("client.cores_used"), e.number("client.cores")
    ratio = e.number("client.ceiling.ratio")
    share = used / cores if used is not None and cores else None
    load = "" if used is None or not cores else f"{used:.2f} of {cores:g} cores"
    if (e.number("completeness.window_s") or 0) < SHORT_WINDOW_S:
        yield unknown(f"a window of less than {SHORT_WINDOW_S:g} s says nothing of the client")
        return
    if ratio is not None:
        yield _against_ceiling(e, t, ratio, load)
    elif share is None:
        yield unknown("the client's CPU time is not known; --certify measures its ceiling")
    elif share > t.most_cores_share:
        yield suspect(
            f"the client used {percent(share)} of {cores:g} cores, so the CPU may be the limit "
            "and not the device; measure its ceiling with --certify, or use more cores"
        )
    else:
        yield well(f"the client left cores idle, using {load}; --certify measures its ceiling")
    yield from _others(e, t)


def _others(e: Evidence, t: Thresholds) -> Iterator[Look]:
    """Others who leave no core idle make our threads wait, whatever these need themselves."""
    ours, others, idle = e.numbers("client", "cores_used", "others_cores", "idle_cores")
    if others is None or idle is None or others < t.idle_cores:
        return
    busy = others + (ours or 0)
    names = ", ".join(
        f"{row.text('name') or 'unnamed'} ({row.number('cpu_s') or 0:.1f} s)"
        for row in e.rows("client.busiest") or []
    )
    who = f" ({names})" if names else ""
    fact = f"others{who} used {others:.2f} cores beside our {ours or 0:.2f}"
    if busy > t.most_cores_share * (busy + idle):
        yield suspect(f"{fact} and left {idle:.2f} idle: our threads waited for them; stop them")
    else:
        yield well(f"{fact}, and {idle:.2f} were idle")


def _against_ceiling(e: Evidence, t: Thresholds, ratio: float, load: str) -> Look:
    used, cores = e.numbers("client", "cores_used", "cores")
    # One interpreter runs on one core at a time, however many there are.
    busy = used is not None and used > t.most_cores_share * min(1.0, cores or 1.0)
    objects = on_objects(e)
    curve = ceiling_sentence(Evidence(e.at("client")), objects=objects)
    fact = curve or f"with a null store this workload runs {ratio:.2f} times as fast"
    if load:
        fact += f"; the run used {load}" if curve else f", using {load}"
    if ratio >= t.least_ceiling_ratio:
        if objects and used is not None and used > t.most_cores_share * (cores or 1.0):
            return suspect(
                f"{fact}: the CPU may be the limit, as that leaves out what HTTP and signatures "
                "take; use more cores"
            )
        return well(fact)
    if keeps_its_schedule(e, t):
        return well(f"{fact}, but it kept its schedule: the load asks for no more")
    if ratio < t.client_bound_ratio and busy:
        return invalid(
            f"{fact}: this is the client's speed and not the device's; use more cores or fewer "
            "checks (--verify stamps)"
        )
    if used is not None and used < t.idle_cores:
        return well(f"{fact}, but the client is idle: the load asks for no more")
    return suspect(
        f"{fact}: below {t.least_ceiling_ratio:g} times the client is part of the number; use more "
        "cores or larger blocks"
    )


def keeps_its_schedule(e: Evidence, t: Thresholds) -> bool:
    """Everything is asked in time, and nearly everything answered: no queue grows."""
    submitted, unfinished = e.numbers("completeness", "submitted", "unfinished")
    answered = submitted and unfinished is not None and unfinished <= _FEW_UNFINISHED * submitted
    return bool(answered) and any(look.status is Status.PASS for look in schedule(e, t))


def schedule(e: Evidence, t: Thresholds) -> Iterator[Look]:
    """Whether requests were asked when they were meant to be: by the lag at a percentile beside the
    response at it, or the shortest target if that is longer."""
    lags = {p: e.number(f"client.schedule_lag_{p}_ms") for p in ("p50", "p99")}
    if lags["p99"] is None:
        yield nothing("nothing is asked by a schedule (closed loop)")
        return
    rate, requested = e.numbers("completeness", "asked_per_s", "requested_per_s")
    if rate is not None and requested and rate < _ASKED_SHARE * requested:
        yield suspect(
            f"asked {rate:.3g}/s of {requested:.3g}/s: users were waiting for their answers, and "
            "times count from when they should have asked; lower the rate, or take more users or "
            "an open loop"
        )
        return
    few = (e.number("completeness.completed") or 0) < _ENOUGH_FOR_P99 and lags["p50"] is not None
    target, looks = e.number("client.shortest_target_ms") or 0.0, []
    for name, lag in lags.items():
        if lag is None or (few and name == "p99"):
            continue
        limit = t.most_schedule_lag_share * max(
            target, e.number(f"client.response_{name}_ms") or 0.0
        )
        looks.append((lag / limit if limit else inf, name, lag, limit))
    if not looks or not max(looks)[3]:
        yield unknown("there is nothing that the lag behind the schedule could be compared with")
        return
    worst, name, lag, limit = max(looks)
    fact = f"{name} of the lag behind the schedule is {lag:.2f} ms"
    if worst > 1:
        yield suspect(
            f"{fact}, above {limit:.2f} ms ({percent(t.most_schedule_lag_share)} of the response "
            "there, or of the shortest target): the benchmark asked too late; lower the rate or "
            "use more cores"
        )
    else:
        yield well(f"{fact}, at most {limit:.2f} ms is wanted")


def harness_lag(e: Evidence, t: Thresholds) -> Iterator[Look]:
    """A call's time ends when its thread can take the instant: the published time at a percentile
    can be too long by what the lag is there."""
    if e.number("client.harness_lag_p99_ms") is None:
        yield unknown("the harness's own lag was not measured")
        return
    shares = {"p50": t.most_median_lag_share, "p99": t.most_harness_lag_share}
    looks = []
    for name, most in shares.items():
        for kind in ("read", "write"):
            lag, took = e.numbers("client", f"harness_lag_{name}_ms", f"storage_{kind}_{name}_ms")
            if lag is not None and took:
                fact = f"{lag:.2f} ms late at {name}, where a {kind} takes {took:.2f} ms"
                looks.append((lag / took / most if most else inf, fact, most))
    if not looks:
        yield nothing("storage moved nothing that the lag could distort")
        return
    worst, fact, most = max(looks)
    if worst <= 1:
        yield well(f"the harness woke up {fact}")
        return
    yield suspect(
        f"the harness woke up {fact}: more than {percent(most)} of that can be the harness's; use "
        "more cores, fewer threads or larger blocks, or stop what else runs here"
    )
