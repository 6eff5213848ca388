"""`make bench-check` detects a call that has become more expensive than its budget."""

from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from itertools import count
from types import SimpleNamespace

import pytest

import check
import run
from bench import budgets, goals, pairs, record, report, valgrind, waiting_page
from bench.budgets import Budget
from bench.calls import ADMITTED, ALL, LIMIT, NEW, NEW_KEYS, PRODUCTION, SET_EX
from bench.commands import Commands, Costs
from bench.goals import MissingFigureError
from bench.growth import Growth
from bench.memory import Memory
from bench.pairs import Pair
from bench.record import BenchmarkRun, WaitingRun
from bench.report import Results
from bench.scale import QUICK
from bench.servers import AOF, CLUSTER, PLAIN, REPLICA
from bench.valgrind import Count
from bench.valkey import Valkey
from support import binaries
from support.server import REPOSITORY

pytestmark = pytest.mark.once

TEXT = """\
server = "Redis 7.0"

[[budget]]
call = "ours"
reference = "theirs"
at_most = 0.8
goal = 0.7
"""
BUDGETS = budgets.parse(TEXT).budgets


def test_call_within_its_budget_passes():
    assert budgets.are_kept(budgets.compare(BUDGETS, {"ours": 80, "theirs": 100}))


def test_call_above_its_budget_fails():
    assert not budgets.are_kept(budgets.compare(BUDGETS, {"ours": 81, "theirs": 100}))


def test_one_call_above_its_budget_fails_the_check():
    two = [*BUDGETS, Budget("theirs", "ours", at_most=1.0)]
    assert not budgets.are_kept(budgets.compare(two, {"ours": 60, "theirs": 100}))


def test_a_missed_goal_is_reported_but_is_no_failure():
    (verdict,) = budgets.compare(BUDGETS, {"ours": 75, "theirs": 100})
    assert verdict.is_kept
    assert not verdict.reaches_goal


def test_an_update_allows_the_measured_cost_and_less_than_a_tenth_more():
    text = budgets.updated_text(TEXT, budgets.compare(BUDGETS, {"ours": 60, "theirs": 100}))
    (budget,) = budgets.parse(text).budgets
    assert budgets.are_kept(budgets.compare([budget], {"ours": 60, "theirs": 100}))
    assert not budgets.are_kept(budgets.compare([budget], {"ours": 66, "theirs": 100}))
    assert budget.goal == BUDGETS[0].goal


def test_a_call_that_varies_gets_twice_the_margin():
    text = TEXT + 'varies = "by its keys"\n'
    measured = {"ours": 60, "theirs": 100}
    (steady,), (varying,) = [
        budgets.parse(
            budgets.updated_text(toml, budgets.compare(budgets.parse(toml).budgets, measured))
        ).budgets
        for toml in (TEXT, text)
    ]
    assert varying.at_most - 0.6 == pytest.approx(2 * (steady.at_most - 0.6))


@pytest.mark.parametrize(("rounds_until_kept", "is_kept"), [(0, True), (3, True), (4, False)])
def test_a_call_above_its_budget_is_measured_on_more_servers(
    monkeypatch, rounds_until_kept, is_kept
):
    rounds = count()

    def counted(name):
        if name == "SET EX":
            return Count(100, 100)
        instructions = 80 if next(rounds) == rounds_until_kept else 81
        return Count(instructions, instructions)

    def counts(_binary, calls, _servers):
        return {name: counted(name) for name in {call.name for call in calls}}

    monkeypatch.setattr(check.valgrind, "counts", counts)
    wanted = [Budget("RL.TAKE", "SET EX", at_most=0.8)]
    found = check.measure(None, wanted, check.FIRST_SERVERS)
    assert budgets.are_kept(check.verdicts_of(wanted, found)) == is_kept


@pytest.mark.parametrize(("mean", "is_kept"), [(101, True), (104, True), (110, False)])
def test_rare_work_of_a_call_is_compared_with_its_budget(mean, is_kept):
    wanted = [Budget("RL.TAKE", "SET EX", at_most=1.0)]
    counts = {"RL.TAKE": Count(99, mean), "SET EX": Count(100, 100)}
    assert budgets.are_kept(check.verdicts_of(wanted, counts)) == is_kept


def test_periodic_work_of_the_server_is_only_in_the_mean(monkeypatch):
    class IdlePipe(SimpleNamespace):
        def run(self, *_):
            pass

    # Two cache lines that every call executes, and one that the server executes once a second.
    periodic_instructions = iter([2_000_000, 100_000, 0, 200_000])
    counting = SimpleNamespace(
        server=SimpleNamespace(port=0, admin=SimpleNamespace(flushall=lambda: None)),
        since_last_dump=lambda: Counter(
            {("a", 0): 4_999_000, ("b", 0): 1_000, ("a", 7): next(periodic_instructions)}
        ),
    )
    monkeypatch.setattr(valgrind, "Pipe", lambda _: nullcontext(IdlePipe()))
    expected = Count(least=5_000, mean=5_100, code=2 * valgrind.CACHE_LINE)
    assert valgrind._count(counting, SET_EX) == expected


def test_instructions_of_a_callee_are_counted_once():
    dump = """\
ob=(1) /usr/bin/server
fn=(1) call
0x100 7 3
calls=2 0x140 9
0x104 7 900
0x13f 7 2
ob=(2) module.so
fn=(2) charge
0x140 9 40
totals: 45
"""
    assert valgrind._lines(dump) == {("ob=(1)", 4): 5, ("ob=(2)", 5): 40}


@pytest.mark.skipif(not valgrind.is_installed(), reason="no valgrind")
def test_calls_are_counted_if_logname_is_set(monkeypatch):
    monkeypatch.setenv("LOGNAME", "carol")
    counts = valgrind.counts(binaries.chosen(), [SET_EX], servers=1)
    assert counts[SET_EX.name].least > 1000


def test_budgets_name_measured_calls():
    names = {name for budget in budgets.load().budgets for name in (budget.call, budget.reference)}
    assert names <= {call.name for call in ALL}


def test_cost_equal_to_a_budget_exceeds_half_of_the_budget():
    for budget in budgets.load().budgets:
        instructions = {budget.call: budget.at_most * 1000, budget.reference: 1000}
        halved = Budget(budget.call, budget.reference, budget.at_most / 2)
        assert budgets.are_kept(budgets.compare([budget], instructions))
        assert not budgets.are_kept(budgets.compare([halved], instructions))


def pair(ratio: float, least: float | None = None, most: float | None = None) -> Pair:
    return Pair(1000 * ratio, 1000, ratio, least or ratio, most or ratio)


def count_of(least: float) -> Count:
    return Count(least, least, code=1000)


@pytest.mark.parametrize(("ratio", "is_noise"), [(0.5, False), (1.0, False), (1.9, True)])
def test_time_that_contradicts_the_instructions_is_noise(ratio, is_noise):
    costs = Costs(
        {ADMITTED.name: pair(ratio), LIMIT.name: pair(1.0)},
        {ADMITTED.name: count_of(3700), LIMIT.name: count_of(8400), SET_EX.name: count_of(8400)},
    )
    assert len(list(report.contradictions(costs))) == is_noise
    assert len(list(report.contradictions(Commands(costs, [])))) == is_noise


def test_calls_on_servers_with_different_settings_are_not_compared():
    counts = {call.name: count_of(8400) for call in PRODUCTION} | {ADMITTED.name: count_of(3700)}
    pairs = {ADMITTED.name: pair(1.9), LIMIT.with_setup(AOF).name: pair(1.0)}
    assert list(report.contradictions(Costs(pairs, counts))) == []


@pytest.mark.parametrize(
    ("found", "is_noise"),
    [
        (pair(0.85, 0.80, 0.90), False),
        (pair(0.85, 0.60, 0.90), True),
        # The ratio of the medians differs from the ratio of the rounds.
        (Pair(940, 1000, 0.85, 0.80, 0.90), False),
        (Pair(960, 1000, 0.85, 0.80, 0.90), True),
        (Pair(740, 1000, 0.85, 0.80, 0.90), True),
    ],
)
def test_rounds_that_contradict_each_other_are_noise_in_every_section(found, is_noise):
    assert found.is_noisy == is_noise
    sections = [
        Costs({"call": found}, {}),
        Commands(Costs({"call": found}, {}), []),
        Growth({1: pair(1.0), 10_000_000: found}, {}),
        Growth({}, {("call", 1000): found}),
    ]
    for section in sections:
        assert len(list(report.contradictions(section))) == is_noise


def test_ratio_of_a_pair_compares_neighbouring_runs():
    # On a machine that becomes ever slower, only neighbouring runs can be compared.
    runs = count(1)
    found = pairs.alternate(
        lambda: next(runs), {"half": lambda: 0.5 * next(runs), "same": lambda: next(runs)}, rounds=5
    )
    assert {name: (pair.least, pair.ratio, pair.most) for name, pair in found.items()} == {
        "half": (0.5, 0.5, 0.5),
        "same": (1.0, 1.0, 1.0),
    }


@pytest.mark.parametrize("noisy_measurements", [0, 2, 99])
def test_noisy_pairs_are_measured_again(noisy_measurements):
    rounds, calls = 3, []

    def noisy():
        calls.append("noisy")
        measurement = (len(calls) - 1) // rounds
        return 2.0 if measurement < noisy_measurements and len(calls) % rounds == 0 else 1.0

    steady = []
    found = pairs.alternate(
        lambda: 1.0, {"noisy": noisy, "steady": lambda: steady.append(1) or 1.0}, rounds
    )
    assert len(calls) == rounds * (1 + min(noisy_measurements, pairs.TRIES))
    assert len(steady) == rounds
    assert found["noisy"].is_noisy == (noisy_measurements > pairs.TRIES)


# Record of the previous run. Its load average is higher than any that a test meets.
PREVIOUS = BenchmarkRun("Redis on 2 CPUs", 9999.0, QUICK, Results())


@pytest.fixture
def whole_run(monkeypatch, tmp_path):
    """Returns a function that runs `make bench` with fixed results, of which one section fails, and
    returns the recorded results.
    """
    sections = Results(valkey=Valkey("Valkey", {}), memory=Memory(1, {}, {}, {}))
    (tmp_path / "measured").mkdir()
    monkeypatch.setattr(record, "FOLDER", tmp_path / "measured")
    monkeypatch.setattr(run, "REPOSITORY", tmp_path)
    for function in ("write", "redraw"):
        monkeypatch.setattr(run, function, lambda *_: None)
    for program in ("program", "benchmark_program"):
        monkeypatch.setattr(run.load, program, lambda: None)
    monkeypatch.setattr(run.os, "cpu_count", lambda: 2)
    monkeypatch.setattr(run.binaries, "chosen", lambda: SimpleNamespace(name="Redis"))
    record.write(PREVIOUS, record.FOLDER)

    def measure(failing_section: str, growth: Growth) -> Results:
        def measured_section(section, *_):
            if section == failing_section:
                raise ValueError(section)
            return growth if section == "growth" else getattr(sections, section)

        (tmp_path / "target/bench").mkdir(parents=True, exist_ok=True)
        monkeypatch.setattr(run, "measure", measured_section)
        monkeypatch.setattr(run.shutil, "rmtree", lambda *_, **__: None)
        monkeypatch.setattr(run.sys, "argv", ["run.py"])
        with pytest.raises(SystemExit) as ended:
            run.main()
        assert ended.value.code
        return record.read(BenchmarkRun).results

    return measure


def test_failed_section_does_not_stop_the_run(whole_run):
    found = whole_run("memory", Growth({1: pair(1.0)}, {}))
    assert (found.memory, found.growth) == (None, Growth({1: pair(1.0)}, {}))
    assert found.valkey


def test_section_with_noisy_times_is_not_recorded(whole_run):
    found = whole_run("none", Growth({1: pair(1.0, 0.5, 1.5)}, {}))
    assert found.growth is None
    assert found.memory
    assert found.valkey


def test_page_with_figures_of_the_previous_run_has_the_higher_load(whole_run):
    whole_run("memory", Growth({1: pair(1.0)}, {}))
    assert record.read(BenchmarkRun).load == PREVIOUS.load


def test_page_with_new_figures_only_has_the_load_of_its_run():
    assert run.load_of_page(1.0, PREVIOUS, set(report.SECTIONS)) == 1.0


def test_published_figures_do_not_contradict_each_other():
    results = record.read(BenchmarkRun).results
    for section in report.SECTIONS:
        assert list(report.contradictions(getattr(results, section))) == []


def production() -> Costs:
    # Each call costs more than the previous one, so that no two multiples are equal by chance.
    counts = {call.name: count_of(1000 + 100 * index) for index, call in enumerate(PRODUCTION)}
    bases = report.BASES.values()
    return Costs({name: pair(1.0) for name in counts if name not in bases}, counts)


def test_first_table_has_the_conditions_of_production():
    page = report.write("", QUICK, Results(production=production()), 0.0)
    table = page[: page.index("## Run it again")]
    rows = {row[0].strip("| "): row for line in table.splitlines() if (row := line.split(" | "))}
    counts = production().counts
    for setup in (PLAIN, AOF, REPLICA, CLUSTER):
        for call in (SET_EX, ADMITTED, LIMIT):
            name = call.with_setup(setup).name
            multiple = counts[name].least / counts[SET_EX.with_setup(setup).name].least
            assert rows[name][2] == f"{multiple:.2f}"


def test_goal_without_a_figure_fails():
    costs = production()
    others = [SET_EX, *(call for call in ALL if call not in PRODUCTION)]
    counts = {call.name: count_of(1000) for call in others}
    timed = {call.name: pair(1.0) for call in others if call not in [SET_EX, *NEW_KEYS]}
    results = Results(production=costs, commands=Commands(Costs(timed, counts), []))
    descriptions = {goal.description for goal in goals.all_goals(results)}
    assert f"instructions of {NEW.name}, x SET EX, a new key" in descriptions
    for missing in (NEW.name, SET_EX.with_setup(AOF).name):
        with pytest.raises(MissingFigureError, match=f"{missing}$"):
            goals.all_goals(
                Results(
                    production=replace(costs, counts=_without(costs.counts, missing)),
                    commands=Commands(Costs(timed, _without(counts, missing)), []),
                )
            )
    with pytest.raises(MissingFigureError):
        goals.all_goals(Results(production=replace(costs, pairs={})))


def _without(figures: dict[str, Count], name: str) -> dict[str, Count]:
    return {call: figure for call, figure in figures.items() if call != name}


def test_the_pages_show_the_measured_figures():
    run, waits = record.read(BenchmarkRun), record.read(WaitingRun)
    pages = {
        "benchmarks": report.write(run.server, run.scale, run.results, run.load),
        "waiting": waiting_page.write(waits.server, waits.size, waits.found, waits.load),
    }
    for name, page in pages.items():
        text = (REPOSITORY / f"docs/{name}.md").read_text()
        assert text == page, "run benches/run.py --redraw"


@pytest.mark.parametrize("kind", [BenchmarkRun, WaitingRun])
def test_measured_results_are_stored_unchanged(kind, tmp_path, monkeypatch):
    run = record.read(kind)
    record.write(run, tmp_path)
    monkeypatch.setattr(record, "FOLDER", tmp_path)
    assert record.read(kind) == run
