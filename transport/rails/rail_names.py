"""What ranks call their rails: memory, addresses, interfaces; and which of them join two ranks."""

import os

from lanterne.errors import InputError
from lanterne.transport.job.bootstrap import address_of, listen_address
from lanterne.transport.rails.rail import MEMORY, listen
from lanterne.transport.rank_group import host_identity

# Names of rails beside addresses and interfaces: MEMORY, between ranks of one host; TCP, the address of this host.
TCP = "tcp"


def network_host():
    """Equal where memory is shared, and is to be used: not between the hosts of an emulated cluster."""
    return f"{host_identity()} {os.readlink('/proc/self/ns/net')}"


def bind_address(name, several_hosts):
    """The address to listen at for the rail `name`."""
    address = listen_address(several_hosts) if name == TCP else address_of(name)
    try:
        listen(address)[0].close()
    except OSError as error:
        raise InputError(
            f"rails: got {name!r}, expected memory, tcp, or an interface or address of this host ({error.strerror})"
        ) from error
    return address


def check_rail(name):
    """Raise InputError if this host has no rail `name`."""
    if name != MEMORY:
        bind_address(name, several_hosts=False)


def check_agreed(every):
    """Raise InputError, the same on every rank, if what the ranks ask for does not fit together."""
    for rank, other in enumerate(every):
        for what in ("queues", "rails"):
            got, expected = (len(told[what]) if what == "rails" else told[what] for told in (other, every[0]))
            if got != expected:
                raise InputError(f"delegate: got {got} {what} on rank {rank}, expected {expected} as on rank 0")
        for peer in other["peers"]:
            if rank not in every[peer]["peers"]:
                raise InputError(f"delegate: got delegates on rank {rank} for rank {peer}, expected them on both")
            if not any(joined(other, every[peer])):
                raise InputError(
                    f"rails: got {', '.join(other['rails'])} on rank {rank} and {', '.join(every[peer]['rails'])} on "
                    f"rank {peer}, expected one that joins them: memory needs a common host"
                )


def joined(here, there):
    """Whether each rail joins two ranks, a list, from what they told."""
    return [
        here["host"] == there["host"] if mine == theirs == MEMORY else MEMORY not in (mine, theirs)
        for mine, theirs in zip(here["rails"], there["rails"], strict=True)
    ]


def share_memory(here, there):
    """Whether messages between two ranks go through memory."""
    return MEMORY in [name for name, joins in zip(here["rails"], joined(here, there), strict=True) if joins]
