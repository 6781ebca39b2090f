"""What ranks call their rails: memory, addresses, interfaces; which of them join two ranks, and how all ranks meet."""

import json
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from lanterne.errors import InputError, LanterneError
from lanterne.transport.job.bootstrap import address_of, shown_address
from lanterne.transport.machine import THIS_MACHINE, Machine
from lanterne.transport.networks import refuse_if_encrypted
from lanterne.transport.rails.rail import MEMORY, Address, CheckDead, Meeting, Proven, join, listen
from lanterne.transport.rank_group import host_identity
from lanterne.transport.timeouts import SETUP_S

# Names of rails beside addresses and interfaces: MEMORY, between ranks of one host; TCP, the address that a rank shows.
TCP = "tcp"
# What all ranks call alike: the bytes of this one, and then those of every rank.
Exchange: TypeAlias = Callable[[bytes], Sequence[bytes]]


def network_host() -> str:
    """Equal where memory is shared, and is to be used: not between the hosts of an emulated cluster."""
    return f"{host_identity()} {os.readlink('/proc/self/ns/net')}"


def bind_address(name: str, *, several_hosts: bool, reached: str = "", machine: Machine = THIS_MACHINE) -> str:
    """The address to listen at for the rail `name`; `reached` as `shown_address` has it."""
    address = shown_address(reached, several_hosts=several_hosts) if name == TCP else address_of(name)
    try:
        listen(address, machine)[0].close()
    except OSError as error:
        raise InputError(
            f"rails: got {name!r}, expected memory, tcp, or an interface or address of this host ({error.strerror})"
        ) from error
    return address


def check_rail(name: str) -> None:
    """Raise InputError if this host has no rail `name`."""
    if name != MEMORY:
        bind_address(name, several_hosts=False)


def check_agreed(every: Sequence[Mapping[str, Any]]) -> None:
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


def joined(here: Mapping[str, Any], there: Mapping[str, Any]) -> list[bool]:
    """Whether each rail joins two ranks, from what they told."""
    return [
        here["host"] == there["host"] if mine == theirs == MEMORY else MEMORY not in (mine, theirs)
        for mine, theirs in zip(here["rails"], there["rails"], strict=True)
    ]


def share_memory(here: Mapping[str, Any], there: Mapping[str, Any]) -> bool:
    """Whether messages between two ranks go through memory."""
    return MEMORY in [name for name, joins in zip(here["rails"], joined(here, there), strict=True) if joins]


def connect_rails(
    rank: int,
    rails: Sequence[str],
    exchange: Exchange,
    machine: Machine = THIS_MACHINE,
    check_dead: CheckDead | None = None,
    token: str | None = None,
    reached: str = "",
    *,
    repeated: bool = False,
    seals: bool = True,
) -> tuple[Meeting, dict[tuple[int, int], Proven]]:
    """Connect each rail to all ranks: where they were made, whose listeners are open still, and by peer and index.

    Args:
        token: what both ends of a rail prove to know; None: one that rank 0 makes, and tells by `exchange`.
        reached: the address by which this rank has reached the job's store; empty: there is none.
        repeated: several rails may have the same name: they are to carry different things, not to replace each other.
        seals: as rail.join has it.
    """
    own = {"host": network_host(), "rails": len(rails), "token": os.urandom(16).hex()}
    every = [json.loads(data) for data in exchange(json.dumps(own).encode())]
    listeners: list[socket.socket] = []
    hosts: list[str] = []
    addresses: list[Address] = []
    error: Exception | None = None
    try:
        if not rails or (len(set(rails)) < len(rails) and not repeated) or MEMORY in rails:
            got = ", ".join(rails) or "none"
            raise InputError(f"spare rails: got {got}, expected a tuple of different addresses or interfaces")
        several_hosts = len({other["host"] for other in every}) > 1
        # What has no seals of its own has no encryption of its own either.
        if seals and several_hosts:
            refuse_if_encrypted("spare rails")
        hosts = [bind_address(name, several_hosts=several_hosts, reached=reached, machine=machine) for name in rails]
        for host in hosts:
            sock, address = listen(host, machine)
            listeners.append(sock)
            addresses.append(address)
    except (LanterneError, OSError) as failure:
        error = failure
    told = {"listen": addresses, "error": str(error or "")}
    try:
        listening = [json.loads(data) for data in exchange(json.dumps(told).encode())]
        if error:
            raise error
        for other, (its, its_listening) in enumerate(zip(every, listening, strict=True)):
            if its_listening["error"] or its["rails"] != len(rails):
                why = its_listening["error"] or f"got {its['rails']} of them, expected {len(rails)}"
                raise InputError(f"spare rails: rank {other}: {why}")
        peers = {other: its["listen"] for other, its in enumerate(listening) if other != rank}
        secret: str = every[0]["token"] if token is None else token
        meeting = Meeting(listeners, hosts, peers, rank, secret, machine)
        return meeting, join(meeting, SETUP_S, check_dead, seals=seals)
    except BaseException:
        for sock in listeners:
            sock.close()
        raise
