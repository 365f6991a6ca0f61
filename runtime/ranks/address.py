"""Addresses where nodes and ranks meet: how they are written, looked up and waited for. None of it needs torch."""

import re
import socket
import time

_ENDPOINT = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([\w.-]+)):([0-9]{1,5})")
_TRY = 3.0  # seconds for one connection: an address that swallows packets must not use up the whole wait


def parsed(endpoint: str) -> tuple[str, int] | None:
    """Host and port of HOST:PORT, where an IPv6 address is in brackets; None if it is something else."""
    found = _ENDPOINT.fullmatch(endpoint)
    if found is None or not 1 <= int(found[3]) <= 65535:
        return None
    return found[1] or found[2], int(found[3])


def unknown(host: str) -> str | None:
    """Why this machine can't look up a host; None if it can."""
    try:
        socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        return error.strerror or str(error)
    except UnicodeError:  # a part of the name is empty or too long
        return "that can't be a host's name"
    return None


def wait_for(host: str, port: int, seconds: float) -> None:
    """Wait until somebody listens there; raises the last OSError if nobody does.

    torch's own client prints C++ stacks while it tries, and tries as long again for every family of addresses.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection((host, port), timeout=min(_TRY, max(0.1, deadline - time.monotonic()))).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.1)
