"""The tests run without the network: whoever goes outside is stopped, told, and found out even if he hides it."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ELSEWHERE = "192.0.2.1"  # of no machine: RFC 5737
TRY = f"""
import socket
try:
    socket.create_connection(({ELSEWHERE!r}, 80), timeout=1)
except Exception as error:
    print(type(error).__name__, error)
"""
LOG = Path(os.environ["SSLBOOK_TESTS_OUTSIDE"])


@contextlib.contextmanager
def forgiven():
    """What the block wrote down is taken back, lest this test fail for it; yields what it was in the end."""
    before = LOG.read_bytes()
    said: list[str] = []
    yield said
    said += LOG.read_bytes()[len(before) :].decode().splitlines()
    LOG.write_bytes(before)


@pytest.mark.parametrize(
    "ask",
    [
        lambda: socket.create_connection((ELSEWHERE, 80), timeout=1),
        lambda: socket.getaddrinfo("pypi.org", 443),
        lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"", (ELSEWHERE, 80)),
    ],
)
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_what_leaves_this_machine_is_refused_with_a_sentence(ask) -> None:
    with forgiven() as said, pytest.raises(RuntimeError, match=r"not on this machine.*Tests run without the network"):
        ask()
    assert len(said) == 1


def test_a_program_that_a_test_starts_is_refused_too_and_found_out_if_it_goes_on() -> None:
    with forgiven() as said:
        done = subprocess.run([sys.executable, "-c", TRY], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("OutsideError")
    assert ELSEWHERE in "".join(said)


def test_this_machine_may_be_asked() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:  # the system answers for whoever listens
        socket.create_connection(("localhost", server.getsockname()[1]), timeout=10).close()
