"""What a statement's words say: of the role, of a transaction's end, of prepared statements."""

from __future__ import annotations

import tracemalloc

import pytest

from ysactor.connection.wording import Deed, deed_of

ROLE = Deed(role=True)
COMMIT = Deed(ends=True, commits=True)
ROLLBACK = Deed(ends=True)


@pytest.mark.parametrize(
    ("query", "deed"),
    [
        ("SELECT 1", None),
        ("SELECT CASE WHEN true THEN 1 END", None),
        # the role: C56
        ("SET ROLE app", ROLE),
        ("set\n session  role app", ROLE),
        ("SET /* as whom? */ ROLE app", ROLE),
        ('set "role" to app', ROLE),
        ("SET role = app", ROLE),
        ("SET SESSION AUTHORIZATION app", ROLE),
        ("set session session authorization app", ROLE),
        ("SET session_authorization TO app", ROLE),
        ("SELECT 1; SET ROLE app", ROLE),
        ("RESET ROLE", ROLE),
        ("reset session authorization", ROLE),
        ("SELECT set_config('role', 'app', false)", ROLE),
        ("SELECT pg_catalog.set_config('ROLE', 'app', false)", ROLE),
        ("SELECT set_config($1, $2, false)", ROLE),
        ("SELECT set_config(E'role', 'app', false)", ROLE),
        ("DO $$ BEGIN SET ROLE app; END $$", ROLE),
        ("SELECT set_config('app.tenant', 'role', false)", None),
        ("SET LOCAL ROLE app", None),
        ("UPDATE users SET role = 'admin'", None),
        ("INSERT INTO users VALUES (1) ON CONFLICT (id) DO UPDATE SET role = excluded.role", None),
        ("UPDATE t SET atomic = 1; COMMIT", COMMIT),
        ("INSERT INTO t VALUES ('x; set role y')", None),
        ("/* set role app */ SELECT role FROM users", None),
        # the end of a transaction
        ("COMMIT", COMMIT),
        ("/* done */ commit -- at last", COMMIT),
        ("end work", COMMIT),
        ("INSERT INTO t VALUES (1); COMMIT; SELECT 2", COMMIT),
        ("COMMIT AND CHAIN", COMMIT),
        ("ROLLBACK", ROLLBACK),
        ("abort transaction", ROLLBACK),
        ("PREPARE TRANSACTION 'one'", ROLLBACK),
        ("COMMIT PREPARED 'one'", Deed(commits=True)),
        ("ROLLBACK TO SAVEPOINT one", None),
        ("INSERT INTO notes VALUES ('begin; commit; done')", None),
        ("INSERT INTO notes VALUES ('it''s done; commit;')", None),
        (r"INSERT INTO notes VALUES (E'it\'s done; commit;')", None),
        ("INSERT INTO notes VALUES (1) -- ; rollback", None),
        ("SELECT 1 /* a /* b */ ; commit; */", None),
        ('SELECT 1 AS "; commit;"', None),
        ("SELECT $a$; commit; $$; end; $a$", None),
        ("CREATE FUNCTION f() RETURNS int BEGIN ATOMIC SELECT 1; END", None),
        ("SELECT $1::text; COMMIT", COMMIT),
        ("SELECT x$1$ FROM t; COMMIT; SELECT 'a$1$'", COMMIT),
        # prepared statements
        ("DEALLOCATE ALL", Deed(forgets=True)),
        ("deallocate one", Deed(forgets=True)),
        ("DISCARD ALL", Deed(role=True, forgets=True)),
        ("DISCARD PLANS", None),
        # notifications
        ("LISTEN news", Deed(listens=True)),
        ('SELECT 1; /* to what? */ listen "odd name"', Deed(listens=True)),
        ("BEGIN; LISTEN news; COMMIT", Deed(ends=True, commits=True, listens=True)),
        ("UNLISTEN news", None),
        ("SELECT listen FROM t WHERE x = 'y; listen news'", None),
    ],
)
def test_what_is_known_of_a_statement(query: str, deed: Deed | None) -> None:
    assert deed_of(query) == deed
    long = query + "\n" + " " * 20_000
    assert deed_of(long) == deed, "a long text is looked at as well"


@pytest.mark.parametrize(
    ("before", "long", "after"),
    [
        ("SELECT '", "x", "' -- the end"),
        ("SELECT '", "''", "' -- the end"),
        ("SELECT '", "x''", "' -- the end"),
        ("SELECT E'", "x", "' -- the end"),
        ("SELECT E'", r"\'", "' -- the end"),
        ('SELECT 1 AS "', "x", '" -- the end'),
        ("SELECT $a$", "x", "$a$ -- the end"),
        ("SELECT 'the end' -- ", "x", ""),
        ("SELECT 'the end' /* ", "x", " */"),
        ("SELECT /* the end */ '", "x", ""),
        ("SELECT /* the end */ $a$", "x", ""),
    ],
)
def test_a_long_literal_costs_little_more_memory_than_its_own_copies(before: str, long: str, after: str) -> None:
    query = before + long * 200_000 + after
    tracemalloc.start()
    try:
        assert deed_of(query) is None
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 5 * len(query)
