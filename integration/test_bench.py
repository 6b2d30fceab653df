"""The benchmark's own logic: who is measured when, what a ratio is, and what the report says of it."""

from __future__ import annotations

import json
import os
import xml.etree.ElementTree as ElementTree
from types import SimpleNamespace

import pytest

from integration.bench import arguments, buffers, catalogue, machine, report, rounds, targets
from integration.bench.catalogue import Cell, cells, transports_of, work
from integration.bench.environments import Python
from integration.bench.job import Endpoint, Job
from integration.bench.machine import Cores
from integration.bench.results import Results, Spread, judge
from integration.bench.rounds import schedule
from integration.bench.targets import TARGETS
from integration.bench.worker.works import FUNCTIONS
from integration.bench.worker.works import _bytes_sent as bytes_sent

VERSION = "3.11.7"
OURS = Cell(VERSION, "unix", "pooled", "ysactor")
THEIRS = Cell(VERSION, "unix", "pooled", "asyncpg")


def test_the_order_is_reversed_from_one_round_to_the_next():
    assert list(schedule([OURS, THEIRS], 3)) == [(0, OURS), (0, THEIRS), (1, THEIRS), (1, OURS), (2, OURS), (2, THEIRS)]


def test_what_takes_a_minute_is_measured_once():
    idle = Cell(VERSION, "tcp", "idle-100", "ysactor")
    assert [cell for _, cell in schedule([OURS, idle], 3)] == [OURS, idle, OURS, OURS]


def test_nobody_who_moves_much_finds_other_buffers_than_the_next(monkeypatch):
    copy = Cell(VERSION, "tcp", "copy-in", "ysactor")
    course = []
    monkeypatch.setattr(rounds.buffers, "warm", lambda *cores: course.append(cores))
    monkeypatch.setattr(rounds, "measure", lambda _python, job: course.append(job) or {"wall": 1.0})

    def measured(cores):
        course.clear()
        python = SimpleNamespace(obstacle=lambda _contender: None)
        servers = SimpleNamespace(by_transport=dict.fromkeys(("unix", "tcp"), SimpleNamespace(endpoint=None)))
        rounds.run([OURS, copy], 2, {VERSION: python}, servers, cores, lambda cell, _: cell, lambda _: None)
        return course

    assert measured(Cores(2, 3)) == [OURS, (2, 3), copy, (2, 3), copy, OURS]
    assert measured(None) == [OURS, copy, copy, OURS]


@pytest.mark.skipif(machine.cores() is None, reason="two cores are needed, and threads that can be held to them")
def test_as_much_is_sent_each_way_and_the_caller_keeps_its_cores():
    mine = os.sched_getaffinity(0)
    assert buffers.warm(*machine.cores(), size=1 << 20) == 2 << 20
    assert os.sched_getaffinity(0) == mine


def test_a_ratio_is_taken_within_each_round():
    results = Results()
    for number, (ours, theirs) in enumerate([(1.0, 2.0), (30.0, 40.0), (1.0, 4.0)]):
        results.add(OURS, number, {"wall": ours})
        results.add(THEIRS, number, {"wall": theirs})
    results.add(OURS, 3, {"wall": 99.0})
    assert results.ratio(OURS, "wall", THEIRS) == Spread(0.5, 0.25, 0.75)
    assert results.spread(OURS, "wall") == Spread(15.5, 1.0, 99.0)


def test_a_target_is_met_up_to_its_limit_and_not_measured_without_its_other_side():
    results = Results()
    results.add(OURS, 0, {"wall": 0.55})
    target = next(one for one in TARGETS if one.other == "asyncpg" and one.work == "pooled")
    assert [one.standing for one in judge(results, [target], VERSION, "unix")] == ["not measured"]
    results.add(THEIRS, 0, {"wall": 1.0})
    assert [one.standing for one in judge(results, [target], VERSION, "unix")] == ["met"]
    results.samples[OURS] = [(0, {"wall": 0.56})]
    assert [one.standing for one in judge(results, [target], VERSION, "unix")] == ["missed"]


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.title)
def test_what_a_target_compares_is_measured(target):
    planned = cells(VERSION, ("unix",))
    assert Cell(VERSION, target.transport or "unix", target.work, targets.OURS) in planned
    if target.other is not None:
        other = Cell(VERSION, target.transport or "unix", target.other_work or target.work, target.other)
        assert other in planned


def test_every_work_has_its_function_and_every_contender_its_name():
    assert set(FUNCTIONS) == {task.name for task in catalogue.WORKS}
    assert all(catalogue.contender(name) for task in catalogue.WORKS for name in task.contenders)


def test_over_what_a_work_is_measured():
    assert transports_of(work("pooled"), ("unix", "tcp")) == ("unix", "tcp")
    assert transports_of(work("rows-10000"), ("unix",)) == ("unix", "tls")
    assert transports_of(work("rows-10000"), ("tls",)) == ("tls",)
    assert transports_of(work("idle-100"), ("unix",)) == ("tcp",)


def test_patterns_choose_what_is_measured():
    chosen = cells(VERSION, ("unix",), ("pooled/ysactor*", "leased"))
    assert {cell.work for cell in chosen} == {"pooled", "leased"}
    assert [cell.contender for cell in chosen if cell.work == "pooled"] == ["ysactor", "ysactor-trio-asyncio"]


def test_the_command_line():
    found = arguments.parse(["--quick", "--tls", "--only", "pooled", "--python", "a", "b"])
    assert (found.mode, found.rounds, found.transports, found.pythons) == ("run", 2, ("tls",), ("a", "b"))
    assert arguments.parse(["profile"]).mode == "profile"
    with pytest.raises(SystemExit):
        arguments.parse(["--rounds", "0"])


def test_a_job_survives_its_journey():
    job = Job("pooled", "ysactor", Endpoint("/run", 5432, "127.0.0.1", "app", "db"), 0.3, 60, 100, core=1)
    assert Job.load(job.dump()) == job


def test_the_report_says_what_was_measured_and_what_was_not(tmp_path):
    results = Results()
    results.add(OURS, 0, {"wall": 20e-6, "cpu": 19e-6})
    results.add(THEIRS, 0, {"wall": 50e-6, "cpu": 49e-6})
    results.fail(Cell(VERSION, "unix", "pooled", "triopg"), "could not be <installed>")
    facts = report.Circumstances(
        machine={"processor": "a processor", "cores": "2", "system": "a system"},
        servers={"unix": "PostgreSQL 18"},
        pythons=[Python(VERSION, {}, {}, {"trio": "0.35.0"})],
        rounds=1,
        quick=True,
        pinned=True,
        date="2026-01-01",
        took=60.0,
    )
    page, data, plot = report.write(tmp_path, results, judge(results, TARGETS, VERSION, "unix"), facts)
    text = page.read_text()
    assert "| asyncpg.Pool on asyncio | 0.55 | 0.40 | met | 0.39 |" in text
    assert "| triopg | 0.08 | - | not measured |  |" in text
    assert "could not be <installed>" in text
    assert "not to be quoted" in text
    assert len(json.loads(data.read_text())["targets"]) == len(TARGETS)
    assert ElementTree.parse(plot).getroot().tag.endswith("svg")


async def test_the_kernel_tells_what_was_sent():
    import trio

    listener = (await trio.open_tcp_listeners(0, host="127.0.0.1"))[0]
    before = bytes_sent()
    if before is None:
        pytest.skip("this system does not tell")
    stream = await trio.open_tcp_stream("127.0.0.1", listener.socket.getsockname()[1])
    async with listener, stream:
        # On every socket of the process, and by a duplicate of it: the socket itself stays as it is.
        await stream.send_all(b"x" * 1234)
        assert bytes_sent() - before == 1234
        os.fstat(stream.socket.fileno())
