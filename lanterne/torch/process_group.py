"""The process group of lanterne: torch.distributed's verbs as calls of a Communicator."""

from lanterne.collectives.mailbox import Mailbox, MailRequest
from lanterne.torch.drafts import Draft, Tensors
from lanterne.torch.group_movements import GroupMovements
from lanterne.torch.group_reductions import GroupReductions
from lanterne.torch.torch_internals import old_names, torch_errors
from lanterne.torch.works import RequestWork


@old_names
class LanterneGroup(GroupReductions, GroupMovements):
    """The ranks of a torch process group, over `communicator`.

    Args:
        timeout_s: of calls that are given none.
        on_shutdown: called once this group has ended.

    Every verb is torch's, and raises DistBackendError or ValueError. Tensors are dense and of the CPU; those that are
    not contiguous are copied before and after. all_reduce takes sparse ones, too.
    """

    @property
    def _mailbox(self) -> Mailbox:
        # Made when first needed: the transport keeps its receives.
        return self.communicator.mailbox()

    def send(self, tensors: Tensors, peer: int, tag: int = 0) -> RequestWork:
        draft = Draft()
        with torch_errors():
            for tensor in tensors:
                draft.requests.append(self._mailbox.start_send(draft.read(tensor).array, peer, tag=tag))
        return self._work(draft, None, tensors)

    def recv(self, tensors: Tensors, peer: int | None, tag: int = 0) -> RequestWork:
        draft, received = Draft(), list[MailRequest]()
        with torch_errors():
            for tensor in tensors:
                received.append(self._mailbox.start_recv(draft.write(tensor).array, peer, tag=tag))
        draft.requests += received

        def source() -> int:
            found = received[-1].received
            return -1 if found is None else found.source

        return self._work(draft, None, tensors, source)

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> RequestWork:
        return self.recv(tensors, None, tag)
