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
        lambda: socket.gethostbyname("pypi.org"),
        lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"", (ELSEWHERE, 80)),
        lambda: socket.socket(socket.AF_INET6).connect(("2001:db8::1", 80)),
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


def test_a_test_that_hides_it_fails(pytester_book: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", str(pytester_book)],
        capture_output=True, text=True, check=False, cwd=pytester_book.parent,
    )  # fmt: skip
    assert "1 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    assert "this one went outside" in done.stdout
    assert f"asks for '{ELSEWHERE}'" in done.stdout


@pytest.fixture
def pytester_book(tmp_path: Path) -> Path:
    """Two tests that hide that they went outside; the second is marked."""
    hidden = "    try:\n        socket.create_connection(('192.0.2.1', 80), timeout=0.1)\n    except Exception:\n        pass\n"
    tests = f"import pytest, socket\ndef test_one():\n{hidden}\n@pytest.mark.registry\ndef test_two():\n{hidden}"
    (tmp_path / "test_hidden.py").write_text(tests, encoding="utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    registry: …\n", encoding="utf-8")
    conftest = (Path(__file__).parents[1] / "conftest.py").read_text(encoding="utf-8")
    (tmp_path / "conftest.py").write_text(conftest, encoding="utf-8")
    (tmp_path / "offline").mkdir()
    (tmp_path / "offline/sitecustomize.py").write_bytes(
        (Path(__file__).parents[1] / "offline/sitecustomize.py").read_bytes()
    )
    return tmp_path / "test_hidden.py"


def test_this_machine_may_be_asked() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:  # the system answers for whoever listens
        socket.create_connection(("localhost", server.getsockname()[1]), timeout=10).close()
    socket.getaddrinfo(socket.gethostname(), 80)
