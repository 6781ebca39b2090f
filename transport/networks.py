"""What ranks may say to each other over which network: who else could reach the port that a transport opens.

UCX's TCP layer writes to the address that a message names, so whoever reaches such a port can write the process's
memory, and no setting changes that. Nor is it faster than tcp, which takes two thirds of its CPU time for a gigabyte.
So a job takes ucx by itself on one host, where it opens no port, and between hosts where all have RDMA; else tcp, which
seals what it says (tcp/seal.py) unless LANTERNE_TRUSTED_NETWORK=1 says that nobody else reaches the hosts.
LANTERNE_ENCRYPT=1 asks for tcp between hosts, encrypted (tcp/tls.py), and for nothing else.
"""

import os
import socket
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path

from lanterne.errors import InputError

VARIABLE = "LANTERNE_TRUSTED_NETWORK"
ENCRYPT = "LANTERNE_ENCRYPT"
RDMA_PORTS = "/sys/class/infiniband"


def is_trusted() -> bool:
    """Whether LANTERNE_TRUSTED_NETWORK says that only this job's user reaches the network between its hosts.

    Raises:
        InputError: it is neither 0 nor 1.
    """
    return _is_set(VARIABLE)


def is_encrypted() -> bool:
    """Whether LANTERNE_ENCRYPT asks for what ranks of several hosts send each other to be encrypted.

    Raises:
        InputError: it is neither 0 nor 1.
    """
    return _is_set(ENCRYPT)


def refuse_if_encrypted(what: str) -> None:
    """Raise InputError if what is sent is to be encrypted: `what`, "rails" say, encrypts nothing."""
    if is_encrypted():
        raise InputError(f"{ENCRYPT}=1: got {what}, which would send in the clear, expected transport tcp alone")


def _is_set(variable: str) -> bool:
    text = os.environ.get(variable, "0")
    if text not in ("0", "1"):
        raise InputError(f"{variable}: got {text!r}, expected 0 or 1")
    return text == "1"


def is_loopback(host: str) -> bool:
    """Whether no packet to `host`, a name or an address, leaves this one."""
    with suppress(ValueError):
        return ip_address(host.partition("%")[0]).is_loopback
    with suppress(OSError, UnicodeError):
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        return all(ip_address(str(info[4][0]).partition("%")[0]).is_loopback for info in found)
    return False


def has_rdma(ports: str = RDMA_PORTS) -> bool:
    """Whether a port of an RDMA network card of this host is active."""
    for state in Path(ports).glob("*/ports/*/state"):
        with suppress(OSError):
            if "ACTIVE" in state.read_text():
                return True
    return False
