"""The password file: which line is for which login, and when it is read at all."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ysactor.config import Config
from ysactor.options.pgpass import PassFile, read_passfile
from ysactor.secret import Secret
from ysactor.servers import HostPort

needs_modes = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no permission bits to check")
SEED = HostPort("h", 5433)


async def revealed(secret: Secret | None) -> str | bytes | None:
    return None if secret is None else await secret.reveal()


def write(path: Path, content: str | bytes, mode: int = 0o600) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    path.chmod(mode)
    return path


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path


def of(home: Path, dsn: str | None = None, **options: object) -> Config:
    return Config.of(dsn, options, environ={"HOME": str(home), "APPDATA": str(home)})


@pytest.fixture
def passfile(home: Path) -> Path:
    if sys.platform == "win32":
        (home / "postgresql").mkdir()
        return home / "postgresql" / "pgpass.conf"
    return home / ".pgpass"


class TestLines:
    @pytest.mark.parametrize(
        ("line", "password"),
        [
            ("h:5433:db:u:secret", "secret"),
            ("*:*:*:*:secret", "secret"),
            ("h:*:db:*:secret", "secret"),
            ("h:5434:db:u:secret", None),
            ("i:5433:db:u:secret", None),
            ("h:5433:other:u:secret", None),
            ("h:5433:db:other:secret", None),
            ("H:5433:db:u:secret", None),
            ("#h:5433:db:u:secret", None),
            ("h:5433:db:u", None),
            ("", None),
            ("h:5433:db:u:", ""),
            (r"h:5433:db:u:a\:b\\c", r"a:b\c"),
            ("h:5433:db:u:a:b", "a:b"),
            ("h:5433:db:u: spaces ", " spaces "),
            ("h:5433:db:u:é", "é"),
            (b"h:5433:db:u:\xff", b"\xff"),
            ("h:5433:db:u:end\\", "end\\"),
            ("h:5433:db:u:secret\r\n", "secret"),
        ],
    )
    async def test_a_line_is_read_as_libpq_reads_it(
        self, tmp_path: Path, line: str | bytes, password: str | bytes | None
    ) -> None:
        found = read_passfile(write(tmp_path / "file", line))

        assert await revealed(found.find(SEED, "db", "u")) == password

    async def test_the_first_line_that_matches_counts(self, tmp_path: Path) -> None:
        found = read_passfile(write(tmp_path / "file", "x:*:*:*:no\n\n# comment\nh:*:*:*:first\n*:*:*:*:second\n"))

        assert await revealed(found.find(SEED, "db", "u")) == "first"

    async def test_names_may_hold_escaped_colons(self, tmp_path: Path) -> None:
        found = read_passfile(write(tmp_path / "file", r"\:\:1:5433:d\:b:u\\:secret"))

        assert await revealed(found.find(HostPort("::1", 5433), "d:b", "u\\")) == "secret"

    @pytest.mark.parametrize("host", ["localhost", "/run/pg", "*"])
    async def test_a_socket_is_known_by_its_directory_and_as_localhost(self, tmp_path: Path, host: str) -> None:
        found = read_passfile(write(tmp_path / "file", f"{host}:*:*:*:secret"))

        assert await revealed(found.find(HostPort("/run/pg", 5433), "db", "u")) == "secret"

    @given(
        fields=st.lists(
            st.text(st.characters(exclude_characters="\r\n#", codec="utf-8"), min_size=1), min_size=5, max_size=5
        )
    )
    async def test_whatever_is_escaped_comes_out_as_it_was(
        self, fields: list[str], tmp_path_factory: pytest.TempPathFactory
    ) -> None:
        path = tmp_path_factory.getbasetemp() / "escaped"
        host, _, database, user, password = fields
        line = ":".join(
            part.replace("\\", r"\\").replace(":", r"\:") for part in (host, "5433", database, user, password)
        )

        found = read_passfile(write(path, line))

        assert await revealed(found.find(HostPort(host, 5433), database, user)) == password

    @given(content=st.binary())
    def test_any_bytes_at_all_can_be_read(self, content: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
        read_passfile(write(tmp_path_factory.getbasetemp() / "bytes", content))


class TestSafety:
    @needs_modes
    @pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o610])
    def test_a_file_that_others_can_read_is_ignored_with_a_warning(
        self, tmp_path: Path, mode: int, caplog: pytest.LogCaptureFixture
    ) -> None:
        found = read_passfile(write(tmp_path / "file", "*:*:*:*:SENTINEL-42", mode))

        assert found == PassFile()
        (record,) = caplog.records
        assert record.levelno == logging.WARNING
        assert "group or world access" in record.getMessage()
        assert "SENTINEL" not in caplog.text

    @needs_modes
    def test_what_is_no_plain_file_is_ignored_with_a_warning(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        os.mkfifo(tmp_path / "pipe", 0o600)

        assert read_passfile(tmp_path / "pipe") == PassFile()
        assert read_passfile(tmp_path) == PassFile()
        assert [("plain file" in record.getMessage()) for record in caplog.records] == [True, True]

    def test_a_missing_file_is_empty_and_nobody_is_warned(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        assert read_passfile(tmp_path / "missing") == PassFile()
        assert not caplog.records

    def test_a_path_that_cannot_be_looked_up_is_ignored_with_a_warning(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        file = write(tmp_path / "file", "")

        assert read_passfile(file / "below") == PassFile()
        assert len(caplog.records) == 1

    def test_nothing_of_it_shows_in_a_repr(self, passfile: Path, home: Path) -> None:
        write(passfile, "*:*:*:*:SENTINEL-42")

        config = of(home)

        assert config.password is not None
        assert "SENTINEL" not in repr(config) + repr(config.passfile) + repr(
            config.passfile and config.passfile.entries
        )


class TestConfig:
    async def test_it_is_read_from_the_home_directory_if_no_password_is_given(self, passfile: Path, home: Path) -> None:
        write(passfile, "h:5433:db:u:secret")

        assert await revealed(of(home, "yugabytedb://u@h/db").password) == "secret"
        assert of(home, "yugabytedb://other@h/db").password is None

    async def test_it_is_looked_up_with_the_final_user_and_database(self, passfile: Path, home: Path) -> None:
        write(passfile, "h:5433:app:app:secret")

        assert await revealed(of(home, "yugabytedb://u@h/", user="app").password) == "secret"

    async def test_any_other_password_comes_first(self, passfile: Path, home: Path) -> None:
        write(passfile, "*:*:*:*:file")

        assert await revealed(of(home, password="keyword").password) == "keyword"
        assert await revealed(of(home, "yugabytedb://u:dsn@h").password) == "dsn"
        environ = {"HOME": str(home), "PGPASSWORD": "environ"}
        assert await revealed(Config.of(environ=environ).password) == "environ"
        assert of(home, password=None).password is None
        assert of(home, password="keyword").passfile is None

    async def test_its_place_can_be_given(self, tmp_path: Path, passfile: Path, home: Path) -> None:
        write(passfile, "*:*:*:*:home")
        one = write(tmp_path / "one", "*:*:*:*:one")
        two = write(tmp_path / "two", "*:*:*:*:two")
        environ = {"HOME": str(home), "PGPASSFILE": str(one)}

        assert await revealed(Config.of(environ=environ).password) == "one"
        assert await revealed(Config.of(f"yugabytedb://h?passfile={two}", environ=environ).password) == "two"

    def test_without_a_home_there_is_none(self) -> None:
        assert Config.of(environ={}).password is None

    async def test_each_server_gets_its_own_line_and_a_discovered_one_the_first_seeds(
        self, passfile: Path, home: Path
    ) -> None:
        write(passfile, "b:*:*:*:for-b\nc:*:*:*:for-c\nd:*:*:*:for-d\n")

        config = of(home, hosts="a,b,c")

        assert await revealed(config.password) == "for-b"
        found = {host: await revealed(config.password_for(HostPort(host, 5433))) for host in "abcde"}
        assert found == {"a": "for-b", "b": "for-b", "c": "for-c", "d": "for-d", "e": "for-b"}

    async def test_a_password_from_elsewhere_is_for_every_server(self, passfile: Path, home: Path) -> None:
        write(passfile, "b:*:*:*:for-b")

        config = of(home, hosts="a,b", password="keyword")

        assert await revealed(config.password_for(HostPort("b", 5433))) == "keyword"
