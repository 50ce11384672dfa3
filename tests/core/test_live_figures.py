"""A run at one moment: the sums over its steps, its lines, and its metrics."""

from __future__ import annotations

import re

import pytest

from elbowroom.live.live_lines import live_lines
from elbowroom.live.prometheus import metrics
from elbowroom.live.sampling import KEPT, Sampler
from elbowroom.run.run_now import RunNow, plan_in_force
from tests.core.live_moments import MIB, Moved, moment


def sampler_of(*moments: RunNow) -> Sampler:
    coming = iter(moments)
    return Sampler(lambda: next(coming), "train.py", lambda _: None)


def test_each_step_is_summed_up_once_however_often_the_run_is_looked_at() -> None:
    # given two steps at the first look, the same ones at the second, two more at the third
    first, second, third, fourth = Moved(), Moved(), Moved(stall_ns=5), Moved(swapped_out_bytes=1)
    seen = [(first, second), (first, second), (second, third, fourth)]
    sampler = sampler_of(*(moment(recent=recent, steps=n) for n, recent in zip((2, 2, 4), seen, strict=True)))

    sampler.take()
    sampler.take()

    totals = sampler.figures.totals
    # 20 ms + 20 ms + 5 ns + 20 ms; 24 MiB of three steps and one byte
    assert (totals["steps"], totals["stall_ns"], totals["swapped_out_bytes"]) == (4, 60_000_005, 72 * MIB + 1)


def test_a_count_of_steps_never_goes_back() -> None:
    # given a look in the middle of a count, which sees fewer steps than the look before
    sampler = sampler_of(moment(steps=9), moment(steps=5))

    sampler.take()

    assert sampler.figures.totals["steps"] == 9


def test_a_look_that_fails_leaves_the_one_before() -> None:
    def look() -> RunNow:
        if found:
            raise RuntimeError("dictionary changed size during iteration")
        found.append(1)
        return moment(steps=3)

    found: list[int] = []
    sampler = Sampler(look, "train.py", lambda _: None)

    sampler.take()

    assert sampler.figures.now.steps == 3


def test_the_looks_of_the_last_quarter_of_an_hour_are_kept() -> None:
    sampler = Sampler(moment, "train.py", lambda _: None)

    for _ in range(KEPT + 10):
        sampler.take()

    assert len(sampler.points) == KEPT


def test_the_lines_have_the_step_the_memory_and_the_plan() -> None:
    figures = sampler_of(moment()).figures.as_json()

    # 20 of 40 MiB fill half of the bar of 20
    assert live_lines(figures, 200) == [
        "elbowroom: in step 3 for 250.0 ms | last 800.0 ms, 24.0 MiB out, 23.0 MiB back, stall 20.0 ms",
        "cuda:0 [##########..........] 20.0 MiB of 40.0 MiB | host 12.0 MiB | disk 0 B | pinned 16.0 MiB",
        "plan: 24.0 MiB swapped to host (6); planned peak 30.0 MiB",
    ]


def test_lines_are_cut_to_the_width_of_the_terminal() -> None:
    figures = sampler_of(moment()).figures.as_json()

    assert [len(line) for line in live_lines(figures, 30)] == [30, 30, 30]
    assert live_lines(figures, 30)[2] == "plan: 24.0 MiB swapped to hos…"


def test_in_ram_the_memory_is_that_of_a_recorded_step() -> None:
    before = moment(device="cpu", device_bytes=0, lower_bytes={"disk": 0}, pinned_bytes=0)
    after = moment(device="cpu", device_bytes=30 * MIB, lower_bytes={"disk": 0}, pinned_bytes=0)

    texts = [live_lines(sampler_of(each).figures.as_json(), 200)[1] for each in (before, after)]

    assert texts[0] == f"cpu [{'.' * 20}] not yet measured, of 40.0 MiB | resident 500.0 MiB | disk 0 B"
    # 30 of 40 MiB: 15 of 20
    assert texts[1] == f"cpu [{'#' * 15}{'.' * 5}] 30.0 MiB at the peak of 40.0 MiB | resident 500.0 MiB | disk 0 B"


def test_before_the_first_step_the_lines_say_so() -> None:
    plan = plan_in_force("", None, None)
    first = moment(steps=0, in_step_ns=None, mode="observe", plan=plan, last_step_ns=None, recent=())

    lines = live_lines(sampler_of(first).figures.as_json(), 200)

    assert lines[0] == "elbowroom: 0 steps ended"
    assert lines[2].startswith("plan: none yet: no step has begun")


@pytest.mark.parametrize("mode", ["observe", "frugal", "keep"])
def test_a_step_without_a_plan_has_the_reason_in_its_place(mode: str) -> None:
    assert re.search("observed|no room|fits", plan_in_force(mode, None, None))


def test_metrics_are_in_the_text_format_of_prometheus() -> None:
    text = metrics(sampler_of(moment(device='a"b\\c')).figures.as_json())

    # each metric has a line of help and one of type before its values
    names = re.findall(r"^# TYPE (\S+) (?:gauge|counter)$", text, re.MULTILINE)
    assert names == re.findall(r"^# HELP (\S+) \S", text, re.MULTILINE)
    assert all(re.fullmatch(r"elbowroom_[a-z_]+", name) for name in names)
    values = [line for line in text.splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r'elbowroom_\w+(\{\w+="(?:\\.|[^"\\])*"\})? [\d.e-]+', line) for line in values)
    assert 'elbowroom_device_bytes{device="a\\"b\\\\c"} 20971520' in values
    assert 'elbowroom_lower_tier_bytes{tier="host"} 12582912' in values
    # two steps of 20 ms, and of 24 MiB
    assert "elbowroom_stall_seconds_total 0.04" in values
    assert "elbowroom_swapped_out_bytes_total 50331648" in values
    assert "elbowroom_last_step_seconds 0.8" in values
    counters = re.findall(r"^# TYPE (\S+) counter$", text, re.MULTILINE)
    assert counters
    assert all(name.endswith("_total") for name in counters)


def test_the_client_of_prometheus_reads_the_metrics() -> None:
    reason = "prometheus_client is not installed: the form of the text is tested above"
    parser = pytest.importorskip("prometheus_client.parser", reason=reason)
    text = metrics(sampler_of(moment(device='a"b\\c')).figures.as_json())

    families = {each.name: each for each in parser.text_string_to_metric_families(text)}

    # given the figures of the test above
    assert families["elbowroom_stall_seconds"].type == "counter"
    (stalled,) = families["elbowroom_stall_seconds"].samples
    assert (stalled.name, stalled.value) == ("elbowroom_stall_seconds_total", 0.04)
    (held,) = families["elbowroom_device_bytes"].samples
    assert (held.labels, held.value) == ({"device": 'a"b\\c'}, 20 * 2**20)
    assert all(each.documentation for each in families.values())
