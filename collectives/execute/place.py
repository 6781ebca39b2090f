"""Who is in a communicator, and this rank's place there."""

from lanterne.collectives.topology.topology import nodes_of
from lanterne.transport.base import Transport
from lanterne.transport.machine import Machine
from lanterne.transport.pauses import Pauses


class CommunicatorPlace:
    """The ranks of a communicator as one of them sees them, and how its waits go.

    Args:
        transport: that of this rank.
        ranks: transport ranks of the members, in rank order.
        communicator_id: 16 bits; see Communicator.
        pauses: what waits do between polls.

    Attributes:
        machine: the transport's.
        rank, world_size: this rank's place among `ranks`, and how many they are.
        timeout_s: the default of waits, seconds.
        deterministic: nobody finds out who is late; see Communicator.
        hosts: of each member; who makes the communicator of a job with several sets it before any call.
        shares_memory: whether the ranks share memory, through which calls may go.
    """

    def __init__(self, transport: Transport, ranks: tuple[int, ...], communicator_id: int, pauses: Pauses) -> None:
        self.transport = transport
        self.ranks = ranks
        self.rank: int = ranks.index(transport.rank)
        self.world_size: int = len(ranks)
        self.communicator_id = communicator_id
        self.timeout_s: float = transport.timeout_s
        self.deterministic = False
        self.pauses = pauses
        self.machine: Machine = transport.machine
        self.hosts: tuple[str, ...] = ("",) * len(ranks)
        self.shares_memory: bool = False

    @property
    def nodes(self) -> tuple[tuple[int, ...], ...]:
        """The members of each host."""
        return nodes_of(self.hosts)
