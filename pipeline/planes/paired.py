"""The data plane of Megatron and CrossPipe's engine: a message moves once both its sender and its receiver posted it.

A receive is posted with the send before it, when the rank next has nothing else to do, and those before it from the
same peer with it, for peers match in order. A rank that computes meets nobody: a message that was ready meanwhile
begins to cross its link only then. Each direction has a stream of its own, so no send keeps its rank from computing.

Ranks of one host hand messages over in memory, and only compute when they would have met: DelegatePlane's
`rendezvous`.

Posted ahead, as CrossPipe orders communication for known delays, receives wait for their senders instead, and messages
leave when they are ready: the `_O` of its figure 11.

Paper: Chen et al. 2025 (CrossPipe), sections 6.3 and 7.1.
"""

from typing import Any

import numpy as np

from lanterne.collectives.communicator import Communicator
from lanterne.pipeline.planes.data_plane import Receive, Shape
from lanterne.pipeline.planes.inline import Inline, InlineReceive


class Paired(Inline):
    """Receives are posted late, when waited for.

    Args:
        comm, owned: as Inline has them; over a ShapedTransport with `rendezvous`.
    """

    def __init__(self, comm: Communicator, *, owned: bool = False) -> None:
        super().__init__(comm, None, owned=owned)
        # By peer, in order.
        self._asked: dict[int, list[InlineReceive]] = {}

    def receive(self, shape: Shape, dtype: np.dtype[Any], peer: int) -> Receive:
        receive = InlineReceive(self, shape, dtype, peer)
        self._asked.setdefault(peer, []).append(receive)
        return receive

    def finish(self, timeout_s: float | None = None) -> None:
        super().finish(timeout_s)
        self._asked = {}

    def look(self, receive: InlineReceive) -> bool:
        """As Inline.look; posts all receives up to `receive` from its peer, which matches them in order."""
        asked = self._asked[receive.peer]
        requests = [each.post() for each in asked[: asked.index(receive) + 1]]
        # In this order each arrival gets its time: see ShapedTransport.
        return all([request.test() for request in requests])
