"""Certificates for TLS tests, from an authority made for the test run. Needs ``trustme``, of ``ysactor[test]``."""

from __future__ import annotations

import datetime
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ysactor.testing.postgres.run import Run

if TYPE_CHECKING:
    import trustme


@dataclass(frozen=True, slots=True)
class Certificate:
    """Files in PEM form."""

    chain: Path
    key: Path

    def server_context(self) -> ssl.SSLContext:
        """For a proxy that ends TLS."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.chain, self.key)
        return context


class Authority:
    """A certificate authority. Its files lie in the run's directory, readable by PostgreSQL's user."""

    def __init__(self, run: Run) -> None:
        import trustme

        self._run = run
        self._issuer: trustme.CA = trustme.CA()
        self._count = 0
        self._directory = run.path / "tls"
        self._directory.mkdir(exist_ok=True)
        self.root = self._directory / f"ca-{id(self):x}.pem"
        """The authority's own certificate, for ``ssl_root_cert``."""
        self._issuer.cert_pem.write_to_path(str(self.root))
        run.give(self._directory)

    def issue(self, *names: str, common_name: str | None = None, expired: bool = False) -> Certificate:
        """A certificate for these DNS names and IP addresses, or for a client whose role is ``common_name``."""
        now = datetime.datetime.now(datetime.UTC)
        day = datetime.timedelta(days=1)
        since, until = (now - 30 * day, now - day) if expired else (now - day, now + 30 * day)
        issued = self._issuer.issue_cert(*names, common_name=common_name, not_before=since, not_after=until)
        self._count += 1
        stem = self._directory / f"{self.root.stem}-{self._count}"
        certificate = Certificate(stem.with_suffix(".crt"), stem.with_suffix(".key"))
        for number, blob in enumerate(issued.cert_chain_pems):
            blob.write_to_path(str(certificate.chain), append=number > 0)
        # PostgreSQL refuses a key that others may read.
        certificate.key.touch(mode=0o600)
        issued.private_key_pem.write_to_path(str(certificate.key))
        self._run.give(self._directory)
        return certificate

    def settings(self, certificate: Certificate, *, ask_clients: bool = False) -> dict[str, str]:
        """PostgreSQL's, for a server built with OpenSSL (``binaries.find(require_tls=True)``) to offer TLS.

        ``ask_clients``: client certificates of this authority are taken, as the access method ``cert`` needs.
        """
        asked = {"ssl_ca_file": str(self.root)} if ask_clients else {}
        return {"ssl": "on", "ssl_cert_file": str(certificate.chain), "ssl_key_file": str(certificate.key)} | asked

    def client_context(self, certificate: Certificate | None = None) -> ssl.SSLContext:
        """For a client that trusts this authority only, checks the name, and shows the certificate."""
        context = ssl.create_default_context(cafile=self.root)
        if certificate is not None:
            context.load_cert_chain(certificate.chain, certificate.key)
        return context
