"""Nothing that the tests run in Python talks to another machine.

`conftest.py` loads this file, and puts its folder on PYTHONPATH, so that every Python that a test starts loads it, too (but for
one that is told to ignore its environment). A connection, or a question for an address, that leaves this machine is refused, and
written to the file that SSLBOOK_TESTS_OUTSIDE names, so that a program that goes on without an answer is found out as well. An
audit hook sees what each of Python's libraries asks of the system, and can't be taken out again.
"""

import contextlib
import os
import socket
import sys

_NAMES = ("socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr")
_ADDRESSES = ("socket.connect", "socket.sendto", "socket.sendmsg")
_HERE = {"", "localhost", "0.0.0.0", "::", "::1", socket.gethostname()}
with contextlib.suppress(OSError):  # a machine that doesn't know its own name
    _HERE.add(socket.gethostbyname(socket.gethostname()))


class OutsideError(RuntimeError):
    """A test asked another machine for something."""


def _is_here(host: object) -> bool:
    name = host.decode("latin-1") if isinstance(host, bytes) else str("" if host is None else host)
    own = socket.gethostname().partition(".")[0]
    return name in _HERE or name.startswith(("127.", "::ffff:127.", f"{own}.")) or name == own


def _audit(event: str, arguments: tuple[object, ...]) -> None:
    if event in _NAMES:
        host = arguments[0]
    elif event in _ADDRESSES and isinstance(arguments[1], tuple) and len(arguments[1]) in (2, 4):
        host = arguments[1][0]  # of the internet; another machine has no other kind of address
        if isinstance(host, int):
            return
    else:
        return
    log = os.environ.get("SSLBOOK_TESTS_OUTSIDE")
    if not log or _is_here(host):
        return
    said = f"{event} asks for {host!r}, which is not on this machine: {' '.join(sys.argv[:3])}"
    with open(log, "a", encoding="utf-8") as lines:  # noqa: PTH123 - pathlib would be loaded in each process
        lines.write(said + "\n")
    raise OutsideError(f"{said}. Tests run without the network; one that needs a package registry is marked `registry`")


sys.addaudithook(_audit)
