"""What the fake server makes of SQL: scripts, transactions, settings, the table, the listing, and its journal."""

from __future__ import annotations

import re

import pytest
import trio

from ysactor.driver.protocol import Status
from ysactor.testing import Asked, CancelRequested, Closed, Dialled, LoggedIn, Result, error


@pytest.fixture
async def session(cluster, connect):
    return await connect(cluster.servers[0])


async def _fails(session, call, sqlstate):
    with pytest.raises(Exception, match=r".") as caught:
        await session.drive(call)
    assert getattr(caught.value, "sqlstate", repr(caught.value)) == sqlstate


async def test_a_script_answers_with_rows_a_tag_or_both(cluster, session):
    cluster.answer("SELECT id, name FROM realms", [{"id": 1, "name": "one"}, {"id": 2, "name": "two"}])
    cluster.answer("CREATE TABLE t ()", "CREATE TABLE")
    cluster.answer("UPDATE t SET a = 1 RETURNING a", Result.of([{"a": 1}], "UPDATE 1"))
    cluster.answer("DELETE FROM t", None)
    raw = session.raw

    rows = await session.drive(raw.fetch("select id, name\n  from realms;"))
    assert [dict(row.items()) for row in rows] == [{"id": 1, "name": "one"}, {"id": 2, "name": "two"}]
    assert (rows[0] == (1, "one"), rows[1]["name"], rows[1][-1], "id" in rows[0]) == (True, "two", "two", True)
    with pytest.raises(KeyError):
        rows[0]["nothing"]
    assert await session.drive(raw.execute("SELECT id, name FROM realms")) == "SELECT 2"
    assert await session.drive(raw.execute("CREATE TABLE t ()")) == "CREATE TABLE"
    assert await session.drive(raw.fetchval("UPDATE t SET a = 1 RETURNING a")) == 1
    assert await session.drive(raw.execute("DELETE FROM t")) == "DELETE 1"


async def test_a_script_may_be_a_function_and_sees_the_statement(cluster, session):
    async def answer(statement):
        await trio.sleep(2)
        return [{"got": (statement.args, statement.server.zone, statement.pid)}]

    cluster.answer(re.compile(r"SELECT anything.*"), answer)

    assert await session.drive(session.raw.fetchval("SELECT anything($1)", 5)) == ((5,), "zone-1", session.pid)
    assert trio.current_time() == 2


async def test_the_newest_script_wins_and_the_servers_own_come_first(cluster, session, connect):
    first, second, _ = cluster.servers
    cluster.answer("SELECT who()", [{"who": "cluster"}])
    first.answer("SELECT who()", [{"who": "old"}])
    first.answer("SELECT who()", [{"who": "new"}], times=2)
    other = await connect(second)

    assert [await session.drive(session.raw.fetchval("SELECT who()")) for _ in range(3)] == ["new", "new", "old"]
    assert await other.drive(other.raw.fetchval("SELECT who()")) == "cluster"


async def test_a_scripted_error_is_raised_and_fails_the_transaction(cluster, session):
    cluster.answer("UPDATE t SET a = 1", error("40001", "restart read required"))
    await session.drive(session.raw.execute("BEGIN"))

    await _fails(session, session.raw.execute("UPDATE t SET a = 1"), "40001")
    await _fails(session, session.raw.execute("SELECT 1"), "25P02")
    assert await session.drive(session.raw.execute("COMMIT")) == "ROLLBACK"
    assert session.status is Status.IDLE


async def test_an_error_scripted_for_commit_rolls_back(cluster, session):
    cluster.answer("INSERT", lambda statement: statement.put("k", "v"))
    cluster.answer("COMMIT", error("23503", "a deferred constraint"), times=1)
    for sql in ("BEGIN", "INSERT"):
        await session.drive(session.raw.execute(sql))

    await _fails(session, session.raw.execute("COMMIT"), "23503")

    assert (session.status, "k" in cluster.table) == (Status.IDLE, False)


async def test_a_statement_that_is_not_known_says_how_to_script_it(session):
    with pytest.raises(Exception, match="script it with answer") as caught:
        await session.drive(session.raw.fetch("SELECT * FROM accounts"))
    assert caught.value.sqlstate == "42601"


async def test_a_bug_in_a_script_comes_out_as_it_is(cluster, session):
    cluster.answer("SELECT broken()", lambda _statement: 1 // 0)

    with pytest.raises(ZeroDivisionError):
        await session.drive(session.raw.fetch("SELECT broken()"))
    assert session.is_clean()


async def test_transactions_are_isolated_and_undone(cluster, connect):
    first, second, _ = cluster.servers
    cluster.table.put("balance", 10)
    cluster.answer("SELECT balance", lambda s: [{"balance": s.get("balance", 0)}])
    cluster.answer(re.compile(r"UPDATE balance = \$1"), lambda s: s.put("balance", s.args[0]))
    one, two = await connect(first), await connect(second)

    await one.drive(one.raw.execute("BEGIN"))
    await one.drive(one.raw.execute("UPDATE balance = $1", 7))
    assert await one.drive(one.raw.fetchval("SELECT balance")) == 7
    assert await two.drive(two.raw.fetchval("SELECT balance")) == 10
    await one.drive(one.raw.execute("ROLLBACK"))
    assert await one.drive(one.raw.fetchval("SELECT balance")) == 10
    await one.drive(one.raw.execute("UPDATE balance = $1", 3))
    assert await two.drive(two.raw.fetchval("SELECT balance")) == 3


async def test_of_two_transactions_that_meet_the_second_to_commit_fails_with_40001(cluster, connect):
    cluster.table.put("balance", 10)

    def withdraw(statement):
        statement.put("balance", statement.get("balance") - statement.args[0])

    cluster.answer(re.compile(r"UPDATE accounts SET balance = balance - \$1"), withdraw)
    one, two = await connect(cluster.servers[0]), await connect(cluster.servers[1])
    for session, amount in ((one, 1), (two, 2)):
        await session.drive(session.raw.execute("BEGIN"))
        await session.drive(session.raw.execute("UPDATE accounts SET balance = balance - $1", amount))

    assert await one.drive(one.raw.execute("COMMIT")) == "COMMIT"
    await _fails(two, two.raw.execute("COMMIT"), "40001")

    assert (cluster.table.get("balance"), two.status) == (9, Status.IDLE)


async def test_savepoints_undo_their_part_and_heal_a_failed_transaction(cluster, session):
    cluster.answer(re.compile(r"INSERT \$1"), lambda s: s.put(s.args[0], True))
    run = session.raw.execute
    await session.drive(run("BEGIN"))
    await session.drive(run("INSERT $1", "a"))
    await session.drive(run("SAVEPOINT s"))
    await session.drive(run("INSERT $1", "b"))
    await _fails(session, run("SELECT 1/0"), "22012")
    await session.drive(run("ROLLBACK TO SAVEPOINT s"))
    await session.drive(run("INSERT $1", "c"))
    await session.drive(run("RELEASE SAVEPOINT s"))
    await _fails(session, run("ROLLBACK TO s"), "3B001")
    assert await session.drive(run("COMMIT")) == "ROLLBACK"
    assert cluster.table.keys() == ()

    for sql, args in (("BEGIN", ()), ("INSERT $1", ("a",)), ("SAVEPOINT s", ()), ("INSERT $1", ("b",))):
        await session.drive(run(sql, *args))
    await session.drive(run("ROLLBACK TO s"))
    assert await session.drive(run("COMMIT")) == "COMMIT"
    assert cluster.table.keys() == ("a",)


async def test_transaction_commands_outside_a_transaction(session):
    run = session.raw.execute
    assert await session.drive(run("COMMIT")) == "COMMIT"
    assert await session.drive(run("ROLLBACK")) == "ROLLBACK"
    await _fails(session, run("SAVEPOINT s"), "25P01")


async def test_a_read_only_transaction_refuses_writes(cluster, session):
    cluster.answer("INSERT", None)
    await session.drive(session.raw.execute("BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY DEFERRABLE"))

    await _fails(session, session.raw.execute("INSERT"), "25006")


async def test_several_statements_in_one_string_are_one_transaction(cluster, session):
    cluster.answer("INSERT a", lambda s: s.put("a", ";"))

    await _fails(session, session.raw.execute("INSERT a; SELECT 1/0"), "22012")
    assert cluster.table.keys() == ()
    assert await session.drive(session.raw.execute("INSERT a; SELECT ';'; SELECT 2;")) == "SELECT 1"
    assert cluster.table.keys() == ("a",)
    await _fails(session, session.raw.execute("ROLLBACK; DISCARD ALL"), "25001")
    assert await session.drive(session.raw.execute("DISCARD ALL")) == "DISCARD ALL"


async def test_settings_follow_set_reset_and_rollback(connect, cluster):
    session = await connect(cluster.servers[0], server_settings={"search_path": "start"})
    run, show = session.raw.execute, session.raw.fetchval

    await session.drive(run("SET search_path = 'mine'"))
    await session.drive(run("BEGIN"))
    await session.drive(run("SET search_path TO inner"))
    await session.drive(run("SET LOCAL statement_timeout = '5s'"))
    assert await session.drive(show("SHOW statement_timeout")) == "5s"
    await session.drive(run("ROLLBACK"))
    assert await session.drive(show("SHOW search_path")) == "mine"
    await session.drive(run("BEGIN"))
    await session.drive(run("SET LOCAL statement_timeout = '5s'"))
    await session.drive(run("COMMIT"))
    assert await session.drive(show("SHOW statement_timeout")) == "0"
    await session.drive(run("RESET ALL"))
    assert await session.drive(show("SELECT current_setting('search_path')")) == "start"
    await _fails(session, show("SHOW nonsense"), "42704")
    assert await session.drive(run("SHOW search_path")) == "SHOW"


async def test_notifications_wait_for_commit(cluster, connect):
    listening, sending = await connect(cluster.servers[0]), await connect(cluster.servers[1])
    heard = []

    def hear(_connection, _pid, _channel, payload):
        heard.append(payload)

    await listening.drive(listening.raw.add_listener("news", hear))
    assert cluster.servers[0].sessions[0].channels == {"news"}
    await sending.drive(sending.raw.execute("BEGIN"))
    await sending.drive(sending.raw.execute("NOTIFY news, 'it''s'"))
    assert heard == []
    await sending.drive(sending.raw.execute("COMMIT"))
    assert heard == ["it's"]
    cluster.servers[0].hang()
    await sending.drive(sending.raw.fetchval("SELECT pg_notify($1, $2)", "news", "late"))
    assert heard == ["it's"]
    cluster.servers[0].recover()
    assert heard == ["it's", "late"]


async def test_the_listing_is_the_clusters_but_for_servers_with_a_view_of_their_own(cluster, connect):
    first, second, third = cluster.servers
    replica = cluster.add("10.0.0.4", node_type="read_replica", cloud="aws", region="r", zone="z", public_ip="p4")
    session, other = await connect(first), await connect(second)

    async def listing(of):
        return [row["host"] for row in await of.drive(of.raw.fetch("SELECT * FROM yb_servers()"))]

    rows = await session.drive(session.raw.fetch("SELECT * FROM yb_servers()"))
    assert [tuple(rows[3].keys())[:8], rows[3]["node_type"], rows[3]["public_ip"], rows[3]["port"]] == [
        ("host", "port", "num_connections", "node_type", "cloud", "region", "zone", "public_ip"),
        "read_replica",
        "p4",
        5433,
    ]
    cluster.unlist(third)
    second.lists([third, {"host": None, "port": "x"}])
    assert await listing(session) == ["10.0.0.1", "10.0.0.2", "10.0.0.4"]
    assert await listing(other) == ["10.0.0.3", None]
    second.lists(None)
    cluster.list(third)
    assert await listing(other) == ["10.0.0.1", "10.0.0.2", "10.0.0.4", "10.0.0.3"]
    row = await session.drive(session.raw.fetchrow("SELECT zone, host FROM pg_catalog.yb_servers()"))
    assert tuple(row) == ("zone-1", "10.0.0.1")
    assert replica.row()["cloud"] == "aws"
    cluster.not_yugabyte()
    await _fails(session, session.raw.fetch("SELECT * FROM yb_servers()"), "42883")


async def test_an_empty_or_failing_listing_can_be_scripted(cluster, session):
    cluster.servers[0].lists([])
    assert await session.drive(session.raw.fetch("SELECT * FROM yb_servers()")) == []
    cluster.answer(re.compile(r"(?i)select .* from yb_servers\(\)"), error("XX000", "catalog"), times=1)
    await _fails(session, session.raw.fetch("SELECT * FROM yb_servers()"), "XX000")


async def test_the_view_of_the_sessions_is_that_of_the_server(cluster, connect):
    first = cluster.servers[0]
    session = await connect(first, application_name="app", user="u", database="d", server_settings={"a.b": "c"})
    assert [(v.application_name, v.user, v.database, v.state, v.tls) for v in first.sessions] == [
        ("app", "u", "d", "idle", False)
    ]
    assert first.sessions[0].settings == {"application_name": "app", "a.b": "c"}

    await session.drive(session.raw.execute("BEGIN"))
    assert first.sessions[0].state == "idle in transaction"
    await _fails(session, session.raw.execute("SELECT 1/0"), "22012")
    assert (first.sessions[0].state, first.sessions[0].query) == ("idle in transaction (aborted)", "SELECT 1/0")
    await session.drive(session.raw.execute("ROLLBACK"))
    with trio.move_on_after(1):
        await session.drive(session.raw.fetchval("SELECT pg_sleep(9)"))
    assert (first.sessions[0].state, session.status) == ("active", Status.ABANDONED)


async def test_sessions_end_each_other_by_pid(cluster, connect):
    first = cluster.servers[0]
    one, two = await connect(first), await connect(first)

    assert await one.drive(one.raw.fetchval("SELECT pg_terminate_backend($1)", two.pid)) is True
    assert two.status is Status.CLOSED
    assert await one.drive(one.raw.fetchval("SELECT pg_terminate_backend($1)", two.pid)) is False


async def test_the_journal_tells_the_story_in_order_and_with_times(cluster, connect):
    first, second, _ = cluster.servers
    await trio.sleep(5)
    session = await connect(first, application_name="app")
    with trio.move_on_after(1):
        await session.drive(session.raw.fetchval("SELECT pg_sleep($1)", 9))
    await session.settle(1)
    await trio.sleep(1)
    await session.close(1)
    second.crash()

    at, pid = first.at, session.pid
    assert list(cluster.journal) == [
        Dialled(5, at, at),
        LoggedIn(5, at, pid, "app"),
        Asked(5, at, pid, "SELECT pg_sleep($1)", (9,)),
        CancelRequested(6, at, pid),
        Closed(7, at, pid, "client", "goodbye"),
    ]
    journal = cluster.journal
    assert journal.statements(first) == ("SELECT pg_sleep($1)",)
    assert (len(journal.dials("10.0.0.1:5433")), journal.dials(second), len(journal)) == (1, (), 5)
    assert [type(record) for record in journal.since(6)] == [CancelRequested, Closed]
    journal.clear()
    assert (len(journal), list(journal)) == (0, [])


async def test_asyncpgs_other_methods(session, tmp_path):
    raw = session.raw

    rows = await session.drive(raw.fetchmany("SELECT $1", [(1,), (2,)]))
    assert [row[0] for row in rows] == [1, 2]
    await session.drive(raw.set_type_codec("json", encoder=str, decoder=str))
    await session.drive(raw.set_builtin_type_codec("hstore", codec_name="pg_contrib.hstore"))
    assert sorted(raw.codecs) == ["hstore", "json"]
    await session.drive(raw.reset_type_codec("json"))
    assert sorted(raw.codecs) == ["hstore"]
    out = tmp_path / "out"
    assert await session.drive(raw.copy_from_query("SELECT i FROM generate_series(1, 2) AS i", output=out)) == "COPY 2"
    assert await session.drive(raw.copy_to_table("t", source=out)) == "COPY 2"
    with out.open("wb") as file:
        assert await session.drive(raw.copy_from_table("t", output=file)) == "COPY 2"
    assert out.read_bytes() == b"1\n2\n"
    await session.drive(raw.execute("BEGIN"))
    await session.drive(raw.execute("LISTEN news"))
    await session.drive(raw.reset())
    assert session.is_clean()


async def test_a_statement_that_is_only_prepared_is_shown_and_does_nothing(cluster, session):
    cluster.answer("INSERT INTO t VALUES ($1)", lambda statement: statement.put("t", statement.args))
    raw = session.raw

    await session.drive(raw.executemany("INSERT INTO t  VALUES ($1);", []))
    await session.drive(raw.prepare("SELECT 1"))
    [view] = cluster.servers[0].sessions
    assert view.prepared == ("INSERT INTO t VALUES ($1)", "SELECT 1")
    assert cluster.table.get("t") is None
    assert cluster.journal.statements() == ("PREPARE INSERT INTO t VALUES ($1)", "PREPARE SELECT 1")

    await session.drive(raw.execute("DEALLOCATE ALL"))
    assert cluster.servers[0].sessions[0].prepared == ()
    await session.drive(raw.prepare("SELECT 1"))
    await session.drive(raw.execute("DISCARD ALL"))
    assert cluster.servers[0].sessions[0].prepared == ()


async def test_what_is_wrong_with_a_statements_text_is_found_as_it_is_prepared(cluster, session):
    raw = session.raw
    cluster.answer("SELECT * FROM late", error("42P01"), times=2)
    cluster.answer("SELECT 1 / $1", error("22012"))
    cluster.answer("SELECT * FROM mine", error("42P01"))
    cluster.servers[0].answer("SELECT * FROM mine", [{"id": 1}])

    await _fails(session, raw.executemany("SELECT * FROM late", []), "42P01")
    await _fails(session, raw.prepare("select * from late"), "42P01")
    for sql in ("SELECT * FROM late", "SELECT 1 / $1", "SELECT * FROM mine"):
        await session.drive(raw.executemany(sql, []))
    assert cluster.servers[0].sessions[0].prepared == ("SELECT * FROM late", "SELECT 1 / $1", "SELECT * FROM mine")
    await _fails(session, raw.fetch("SELECT 1 / $1", 0), "22012")


async def test_a_cursor_needs_a_transaction(session):
    async def opened():
        return await session.raw.cursor("SELECT 1")

    await _fails(session, opened(), "25P01")


async def test_asyncpgs_own_timeout_argument_leaves_the_call(session):
    with pytest.raises(TimeoutError):
        await session.drive(session.raw.fetchval("SELECT pg_sleep(9)", timeout=2))

    assert (session.status, trio.current_time()) == (Status.ABANDONED, 2)
