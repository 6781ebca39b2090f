"""The spare rails of a job: TCP connections between all ranks, made together (spare.py)."""

import json
import os

from lanterne.errors import InputError, LanterneError
from lanterne.transport.rails.rail import MEMORY, join, listen
from lanterne.transport.rails.rail_names import bind_address, network_host

SETUP_S = 30.0


def connect_rails(rank, rails, exchange):
    """(peer, index) -> socket, proven, of all rails to all ranks."""
    own = {"host": network_host(), "rails": len(rails), "token": os.urandom(16).hex()}
    every = [json.loads(data) for data in exchange(json.dumps(own).encode())]
    listeners, told, error = [], {"listen": [], "error": ""}, None
    try:
        if not rails or len(set(rails)) < len(rails) or MEMORY in rails:
            got = ", ".join(rails) or "none"
            raise InputError(f"spare rails: got {got}, expected a tuple of different addresses or interfaces")
        several_hosts = len({other["host"] for other in every}) > 1
        hosts = [bind_address(name, several_hosts) for name in rails]
        for host in hosts:
            sock, address = listen(host)
            listeners.append(sock)
            told["listen"].append(address)
    except (LanterneError, OSError) as failure:
        error, told["error"] = failure, str(failure)
    listening = [json.loads(data) for data in exchange(json.dumps(told).encode())]
    try:
        if error:
            raise error
        for other, (its, its_listening) in enumerate(zip(every, listening, strict=True)):
            if its_listening["error"] or its["rails"] != len(rails):
                why = its_listening["error"] or f"got {its['rails']} of them, expected {len(rails)}"
                raise InputError(f"spare rails: rank {other}: {why}")
        addresses = {other: its["listen"] for other, its in enumerate(listening) if other != rank}
        return join(listeners, hosts, addresses, rank, every[0]["token"], SETUP_S)
    finally:
        for sock in listeners:
            sock.close()
