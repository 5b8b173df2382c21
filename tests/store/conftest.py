"""Servers for the tests of far stores: one of each per session, made when the first test asks."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from ceph_server import ACCESS_KEY, SECRET_KEY, CephServer
from moto_s3_server import MotoServer
from server_process import ServerUnavailableError


@pytest.fixture(scope="session")
def server_home() -> Iterator[Path]:
    """Return a directory with a short path: Unix sockets allow 107 characters."""
    with tempfile.TemporaryDirectory(prefix="wt-") as home:
        yield Path(home)


@pytest.fixture(scope="session")
def moto_server(server_home: Path) -> Iterator[MotoServer]:
    """Return a running moto."""
    server = MotoServer(server_home)
    try:
        server.start()
        yield server
    except ServerUnavailableError as error:
        pytest.skip(str(error))
    finally:
        server.stop()


@pytest.fixture(scope="session")
def ceph_server(server_home: Path) -> Iterator[CephServer]:
    """Return a running Ceph with an S3 gateway."""
    try:
        server = CephServer(server_home / "ceph")
    except ServerUnavailableError as error:
        pytest.skip(str(error))
    try:
        server.start()
        yield server
    except ServerUnavailableError as error:
        pytest.skip(str(error))
    finally:
        server.stop()


@pytest.fixture
def s3_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the test server's credentials where a deployment has its own."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
