"""`make bench-check`: a call that has become dearer than its budget is found out."""

from contextlib import nullcontext
from dataclasses import replace
from itertools import count
from types import SimpleNamespace

import pytest

import check
import run
from bench import budgets, commands, record, report, valgrind, waiting_page
from bench.budgets import Budget
from bench.calls import ADMITTED, ALL, LISTENED, SET_EX
from bench.commands import PIPELINES, Commands, Ratio, Timed
from bench.record import Everything, Waits
from bench.report import Results
from bench.scale import QUICK
from bench.valgrind import Count
from support import binaries
from support.server import REPOSITORY

TEXT = """\
server = "Redis 7.0"

[[budget]]
call = "ours"
to = "theirs"
at_most = 0.8
goal = 0.7
"""
BUDGETS = budgets.parse(TEXT).budgets


def test_a_call_within_its_budget_is_kept():
    assert budgets.are_kept(budgets.compare(BUDGETS, {"ours": 80, "theirs": 100}))


def test_a_call_above_its_budget_is_not_kept():
    assert not budgets.are_kept(budgets.compare(BUDGETS, {"ours": 81, "theirs": 100}))


def test_one_call_above_its_budget_is_enough():
    two = [*BUDGETS, Budget("theirs", "ours", at_most=1.0)]
    assert not budgets.are_kept(budgets.compare(two, {"ours": 60, "theirs": 100}))


def test_a_goal_not_reached_is_told_but_is_no_failure():
    (verdict,) = budgets.compare(BUDGETS, {"ours": 75, "theirs": 100})
    assert verdict.is_kept
    assert not verdict.reaches_goal


def test_an_update_allows_what_was_measured_and_not_a_tenth_more():
    text = budgets.updated(TEXT, budgets.compare(BUDGETS, {"ours": 60, "theirs": 100}))
    (budget,) = budgets.parse(text).budgets
    assert budgets.are_kept(budgets.compare([budget], {"ours": 60, "theirs": 100}))
    assert not budgets.are_kept(budgets.compare([budget], {"ours": 66, "theirs": 100}))
    assert budget.goal == BUDGETS[0].goal


def test_a_call_that_varies_gets_twice_the_margin():
    text = TEXT + 'varies = "by its keys"\n'
    measured = {"ours": 60, "theirs": 100}
    (plain,), (wide,) = [
        budgets.parse(
            budgets.updated(each, budgets.compare(budgets.parse(each).budgets, measured))
        ).budgets
        for each in (TEXT, text)
    ]
    assert wide.at_most - 0.6 == pytest.approx(2 * (plain.at_most - 0.6))


@pytest.mark.parametrize(("rounds_until_kept", "is_kept"), [(0, True), (3, True), (4, False)])
def test_a_call_above_its_budget_is_measured_on_more_servers(
    monkeypatch, rounds_until_kept, is_kept
):
    rounds = count()

    def counted(name):
        if name == "SET EX":
            return Count(100, 100)
        ours = 80 if next(rounds) == rounds_until_kept else 81
        return Count(ours, ours)

    def counts(_binary, calls, _servers):
        return {name: counted(name) for name in {call.name for call in calls}}

    monkeypatch.setattr(check.valgrind, "counts", counts)
    wanted = [Budget("RL.TAKE", "SET EX", at_most=0.8)]
    found = check.measure(None, wanted, check.FEW)
    assert budgets.are_kept(check.verdicts_of(wanted, found)) == is_kept


@pytest.mark.parametrize(("mean", "is_kept"), [(101, True), (104, True), (110, False)])
def test_what_a_call_does_less_than_once_a_stretch_is_held_against_its_budget(mean, is_kept):
    wanted = [Budget("RL.TAKE", "SET EX", at_most=1.0)]
    counts = {"RL.TAKE": Count(99, mean), "SET EX": Count(100, 100)}
    assert budgets.are_kept(check.verdicts_of(wanted, counts)) == is_kept


def test_what_a_server_does_each_second_is_not_counted(monkeypatch):
    class Nothing(SimpleNamespace):
        def run(self, *_):
            pass

    counts = iter([7_000_000, 5_100_000, 5_000_000, 5_200_000])
    counting = SimpleNamespace(
        server=SimpleNamespace(port=0, admin=SimpleNamespace(flushall=lambda: None)),
        since_last_asked=lambda: next(counts),
    )
    monkeypatch.setattr(valgrind, "Pipe", lambda _: nullcontext(Nothing()))
    assert valgrind._count(counting, SET_EX) == Count(least=5_000, mean=5_100)


@pytest.mark.skipif(not valgrind.is_there(), reason="no valgrind")
def test_whoever_has_a_name_can_count_more_than_once(monkeypatch):
    monkeypatch.setenv("LOGNAME", "carol")
    counts = valgrind.counts(binaries.chosen(), [SET_EX], servers=1)
    assert counts[SET_EX.name].least > 1000


def test_the_budgets_are_of_calls_that_are_measured():
    named = {name for budget in budgets.load().budgets for name in (budget.call, budget.to)}
    assert named <= {call.name for call in ALL}


def test_half_of_every_budget_is_too_little_for_a_server_that_just_kept_it():
    for budget in budgets.load().budgets:
        instructions = {budget.call: budget.at_most * 1000, budget.to: 1000}
        halved = Budget(budget.call, budget.to, budget.at_most / 2)
        assert budgets.are_kept(budgets.compare([budget], instructions))
        assert not budgets.are_kept(budgets.compare([halved], instructions))


@pytest.mark.parametrize(("get_ns", "is_noise"), [(500, False), (1000, False), (1900, True)])
def test_a_time_that_cannot_be_is_found_out(get_ns, is_noise):
    times = {"GET": get_ns, "SET EX": 1000}
    timed = {
        (name, many): Timed(calls_per_second=1.0, server_ns=ns)
        for many in PIPELINES
        for name, ns in times.items()
    }
    found = Commands(timed, {"GET": 3700, "SET EX": 8400}, peers=[], floors={})
    assert len(report.contradictions(found)) == is_noise * len(report.TOLD_APART)


@pytest.mark.parametrize(("ns", "is_noise"), [(740, True), (760, False), (940, False), (960, True)])
def test_a_ratio_that_is_farther_from_the_pairs_than_their_spread_is_found_out(ns, is_noise):
    pairs = Ratio(median=0.85, least=0.80, most=0.90)
    timed = {
        (name, many): Timed(calls_per_second=1.0, server_ns=time, beside=beside)
        for many in PIPELINES
        for name, time, beside in [("RL.TOKENBUCKET", ns, pairs), ("SET EX", 1000, None)]
    }
    found = Commands(timed, {"RL.TOKENBUCKET": 8000, "SET EX": 8400}, peers=[], floors={})
    assert len(report.contradictions(found)) == is_noise * len(report.TOLD_APART)


def test_the_ratio_of_a_pair_is_that_to_the_runs_of_set_ex_next_to_it(monkeypatch):
    # A machine that becomes slower all the time: only neighbours can be compared.
    runs = count(1)
    monkeypatch.setattr(
        commands,
        "_run",
        lambda _server, call, *_: SimpleNamespace(
            calls_per_second=1.0, server_ns=next(runs) * (0.5 if call is ADMITTED else 1.0)
        ),
    )
    for nothing in ("serving", "pin", "_prepare"):
        monkeypatch.setattr(commands, nothing, lambda *_: nullcontext())
    found = commands._timed(None, [SET_EX, ADMITTED], QUICK)
    paired = (ADMITTED.name, commands.PAIRED)
    assert found[paired].beside == Ratio(0.5, 0.5, 0.5)
    assert {timed.beside for which, timed in found.items() if which != paired} == {None}
    assert found.keys() == {(call.name, many) for call in (SET_EX, ADMITTED) for many in PIPELINES}


def commands_of(ns: float, set_ex_ns: float = 1000) -> Commands:
    pairs = Ratio(median=0.85, least=0.80, most=0.90)
    timed = {
        (name, many): Timed(calls_per_second=1.0, server_ns=time, beside=beside)
        for many in PIPELINES
        for name, time, beside in [(ADMITTED.name, ns, pairs), (SET_EX.name, set_ex_ns, None)]
    }
    return Commands(timed, {ADMITTED.name: 8000, SET_EX.name: 8400}, peers=[], floors={})


@pytest.mark.parametrize(("noisy", "times_again"), [(0, 0), (2, 2), (99, run.TRIES)])
def test_a_call_whose_time_contradicts_its_pairs_is_timed_again(monkeypatch, noisy, times_again):
    told = []

    def timed_anew(_binary, _scale, _peers, _found, names):
        told.append(names)
        return commands_of(740 if len(told) < noisy else 850)

    monkeypatch.setattr(commands, "measure", lambda *_: commands_of(740 if noisy else 850))
    monkeypatch.setattr(commands, "timed_anew", timed_anew)
    found = run.commands_without_noise(None, QUICK, [])
    assert told == [{ADMITTED.name}] * times_again
    assert bool(report.contradictions(found)) == (noisy > run.TRIES)


def test_a_call_that_is_timed_again_leaves_the_times_of_all_others(monkeypatch):
    runs = []

    def timed(_binary, calls, _scale):
        # The machine is half as fast as it was.
        runs.append([call.name for call in calls])
        return {
            (call.name, many): Timed(
                calls_per_second=1.0, server_ns=2000 if call is SET_EX else 1700
            )
            for call in calls
            for many in PIPELINES
        }

    monkeypatch.setattr(commands, "_timed", timed)
    before = commands_of(740)
    found = commands.timed_anew(None, QUICK, [], before, {ADMITTED.name, SET_EX.name})
    assert runs == [[SET_EX.name, ADMITTED.name]]
    assert found.server_ns(commands.PAIRED) == {ADMITTED.name: 850, SET_EX.name: 1000}


@pytest.fixture
def whole_run(monkeypatch, tmp_path):
    """A run of `make bench` that measures nothing, and fails in one section."""
    measured = record.read(Everything)
    (tmp_path / "measured").mkdir()
    monkeypatch.setattr(record, "FOLDER", tmp_path / "measured")
    monkeypatch.setattr(run, "REPOSITORY", tmp_path)
    for nothing in ("write", "redraw"):
        monkeypatch.setattr(run, nothing, lambda *_: None)
    for program in ("program", "benchmark_program"):
        monkeypatch.setattr(run.load, program, lambda: None)
    monkeypatch.setattr(run.os, "cpu_count", lambda: 2)
    binary = SimpleNamespace(name=measured.server.removesuffix(" on 2 CPUs"))
    monkeypatch.setattr(run.binaries, "chosen", lambda: binary)
    record.write(replace(measured, results=Results()), record.FOLDER)

    def measure(fails: str, found: Commands | None) -> Results:
        def measured_section(section, *_):
            if section == fails:
                raise ValueError(section)
            return found if section == "commands" else getattr(measured.results, section)

        (tmp_path / "target/bench").mkdir(parents=True, exist_ok=True)
        monkeypatch.setattr(run, "measure", measured_section)
        monkeypatch.setattr(run.shutil, "rmtree", lambda *_, **__: None)
        monkeypatch.setattr(run.sys, "argv", ["run.py"])
        with pytest.raises(SystemExit) as ended:
            run.main()
        assert ended.value.code
        return record.read(Everything).results

    return measure


def test_a_section_that_fails_costs_the_run_no_other(whole_run):
    found = whole_run("memory", commands_of(850))
    assert (found.memory, found.commands) == (None, commands_of(850))
    assert found.growth


def test_a_section_with_times_that_cannot_be_is_not_kept(whole_run):
    found = whole_run("none", commands_of(740))
    assert found.commands is None
    assert found.memory
    assert found.growth


def test_no_two_figures_that_are_published_contradict_each_other():
    assert report.contradictions(record.read(Everything).results.commands) == []


def test_each_call_is_told_beside_set_ex_under_its_own_conditions():
    # Each costs more than the one before, so that no two of the multiples are the same by chance.
    costs = {call.name: 1000 + 100 * number for number, call in enumerate(ALL)}
    timed = {
        (name, many): Timed(calls_per_second=1.0, server_ns=cost)
        for many in PIPELINES
        for name, cost in costs.items()
    }
    page = report.write("", QUICK, Results(commands=Commands(timed, costs, [], {})), 0.0)
    rows = [line.split(" | ") for line in page.splitlines()]
    for call in LISTENED:
        (row,) = [row for row in rows if row[0] == f"| {call.name}" and len(row) > 4]
        multiple = costs[call.name] / costs[SET_EX.on(call.setup).name]
        assert {cell.strip("| ") for cell in row[2::2]} == {f"{multiple:.2f}"}


def test_the_pages_tell_what_was_measured():
    run, waits = record.read(Everything), record.read(Waits)
    pages = {
        "benchmarks": report.write(run.server, run.scale, run.results, run.load),
        "waiting": waiting_page.write(waits.server, waits.size, waits.found, waits.load),
    }
    for name, page in pages.items():
        text = (REPOSITORY / f"docs/{name}.md").read_text()
        assert text == page, "run benches/run.py --redraw"


@pytest.mark.parametrize("kind", [Everything, Waits])
def test_what_was_measured_is_kept_as_it_is(kind, tmp_path, monkeypatch):
    run = record.read(kind)
    record.write(run, tmp_path)
    monkeypatch.setattr(record, "FOLDER", tmp_path)
    assert record.read(kind) == run
