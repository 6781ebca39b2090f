"""Calls that were captured: CUDA graphs of whole schedules, so that a call costs one launch and no Python per message.

A graph is static: addresses, sizes, late rank and cut. NCCL wants an operation captured on all of its ranks or on none,
so capturing is a collective call of its own, not a cache behind the others.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from lanterne.collectives.bound import DEFAULT_OPS
from lanterne.collectives.core import CommunicatorCore
from lanterne.collectives.execute.arguments import CallOptions, CheckedCall, Form, Key, resolve
from lanterne.collectives.execute.plans import SIGNATURE_NBYTES, SignatureExchange, padded
from lanterne.collectives.execute.requests import CallRequest, CollectiveRequest
from lanterne.collectives.execute.stream_execution import StreamExecution
from lanterne.collectives.late.calls import LateRequest
from lanterne.collectives.late.ready_programs import key_of
from lanterne.errors import InputError, LanterneError, Unavailable
from lanterne.kernels.arrays import Array, Stream
from lanterne.kernels.cuda.device_view import DeviceView
from lanterne.kernels.dtypes import Op, PremulSum
from lanterne.transport.board.late_policy import from_text, to_text

# No longer a choice: see capture's error.
JOIN_VARIABLE = "LANTERNE_CAPTURED_JOIN"


class Captured:
    """A collective call on fixed device arrays, to be launched again and again; see Communicator.capture.

    The arrays are read and written at every launch; keep them. `close` it before the communicator, or leave that to it.
    """

    def __init__(
        self,
        communicator: CommunicatorCore,
        collective: str,
        in_array: Array,
        out_array: "Array | None",
        op: Op | None,
        root: int | None,
        stream: Stream,
        options: CallOptions,
    ) -> None:
        if value := os.environ.get(JOIN_VARIABLE):
            raise InputError(f"{JOIN_VARIABLE}: got {value!r}, which is gone; unset it: the CPU launches a late join")
        op = DEFAULT_OPS.get(collective) if op is None else op
        if isinstance(op, PremulSum):
            raise InputError("capture: got PremulSum, whose copy no graph makes; expected an op by name")
        self._call = resolve(communicator, collective, in_array, out_array, op, root, stream, options)
        side = communicator.device_side(in_array) if self._call.entry is not None else None
        if side is None or side.channel is None or self._call.algorithm == "native":
            raise InputError(f"capture: got {_what(communicator, self._call)}, expected device arrays over nccl")
        self._communicator = communicator
        self._side = side
        self._channel = side.channel
        self._arrays = in_array, out_array
        self._policy: str | None = None
        choices = [("", -1)]
        if collective == "all_reduce" and options.algorithm == "auto" and not options.num_chunks:
            assert self._call.in_array is not None
            self._policy = communicator.late.policy(collective, self._call.in_array.nbytes, on_host=False)
        if self._policy is not None:
            # Graphs for every set of late ranks would be too many.
            policy = from_text(self._policy)
            policy = policy._replace(options=tuple(option for option in policy.options if option.late == 1))
            self._policy = to_text(policy)
            ranks = range(communicator.world_size)
            choices += [(option.choice, rank) for option in policy.options for rank in option.ranks or ranks]
        plans = [communicator.plan(self._key(*choice), self._call.dtype) for choice in choices]
        _agree(communicator, self._call.key)
        made = [plan.make(self._call.in_place) for plan in plans]
        executions = [execution for execution in made if isinstance(execution, StreamExecution)]
        # What one rank has no room for, or CUDA refuses it, is no rank's; else the others would wait for its messages.
        with _together(communicator):
            ours = side.runtime.empty(1 + self._channel.world_size)
            side.region(max(execution.program.scratch_nbytes for execution in executions))
        with communicator.failing:
            self._warm_up(executions, ours)
        try:
            with _together(communicator):
                for execution in executions:
                    self._capture(execution)
        except LanterneError:
            for execution in executions:
                execution.drop_graphs()
            raise
        self._plans: dict[tuple[str, int], _CapturedPlan] | None = {
            choice: _CapturedPlan(plan.signature, execution)
            for choice, plan, execution in zip(choices, plans, executions, strict=True)
        }

    @property
    def asks(self) -> bool:
        """Whether each launch finds out who is late, and picks among graphs by it."""
        return self._policy is not None

    def launch(self, stream: Stream = None) -> CollectiveRequest:
        """Launch the call in the order of `stream` (None: the one that the arrays came with), and return its request.

        Returns once it is queued: with a board, once that has spoken, else at once.
        """
        communicator = self._communicator
        communicator.check_open()
        if self._plans is None:
            raise InputError("launch: got a captured call that is closed")
        call = self._call
        view = call.in_array or call.out_array
        assert isinstance(view, DeviceView)
        entry = self._side.entry(stream, view)
        request: LateRequest | CallRequest
        if self._policy is not None:
            call = call._replace(entry=entry)
            request = LateRequest(communicator, communicator.late, call, self._policy, self._plans)
        else:
            plan = self._plans["", -1]
            plan.execution.bind(call.in_array, call.out_array, entry)
            request = CallRequest(communicator, plan, plan.execution, call.in_place, entry)
        communicator.begin(request).wait(queued=True)
        return request

    def close(self) -> None:
        """Let go of the graphs; a second call does nothing. All launches must be done."""
        for plan in (self._plans or {}).values():
            plan.execution.drop_graphs()
        self._plans = None

    def _key(self, choice: str, late_rank: int) -> Key:
        """The Key of the plan that a record's choice stands for."""
        if not choice:
            return self._call.key
        return key_of(self._call.key, choice, late_rank)

    def _warm_up(self, executions: Sequence[StreamExecution], scratch: Any) -> None:
        """Exchange a byte with everybody whom a graph will have to do with: connections are made now."""
        side = self._side
        neighbours = [execution.neighbours() for execution in executions]
        sends, receives = (set[int]().union(*sets) for sets in zip(*neighbours, strict=True))
        messages = [(False, scratch.address + 1 + peer, 1, peer) for peer in sorted(receives)]
        messages += [(True, scratch.address, 1, peer) for peer in sorted(sends)]
        entry = self._call.entry
        assert entry is not None
        side.enter(entry)
        self._channel.group(messages)
        peers = sorted(self._channel.ranks[peer] for peer in sends | receives)
        side.leave(entry, peers, "the warm-up of a capture", scratch).wait()

    def _capture(self, execution: StreamExecution) -> None:
        execution.bind(self._call.in_array, self._call.out_array)
        execution.capture()


class _CapturedPlan:
    """What a request needs of a plan (CallPlan): agreed on, with one execution that is never given away."""

    def __init__(self, signature: str, execution: StreamExecution) -> None:
        self.signature = signature
        self.execution = execution
        self.agreement: SignatureExchange | None = None

    def give_back(self, _: object, __: Form) -> None:
        pass


def _agree(communicator: CommunicatorCore, key: Key) -> None:
    """Raise InputError unless all ranks capture the same call."""
    for rank, text in enumerate(_gather(communicator, str(key))):
        if text != str(key):
            raise InputError(
                f"capture: rank {communicator.rank} got {key}, rank {rank} got {text}, expected the same on every rank"
            )


@contextmanager
def _together(communicator: CommunicatorCore) -> Iterator[None]:
    """A block that every rank runs: where one raises an error of lanterne, all do, and the communicator goes on."""
    mine: LanterneError | None = None
    try:
        yield
    except LanterneError as error:
        mine = error
    text = str(mine or "").encode()[:SIGNATURE_NBYTES].decode(errors="ignore")
    told = _gather(communicator, text)
    if mine is not None:
        raise mine
    for rank, text in enumerate(told):
        if text:
            raise Unavailable(f"capture: rank {rank}: {text}")


def _gather(communicator: CommunicatorCore, text: str) -> list[str]:
    """Every rank's `text`, which fills SIGNATURE_NBYTES at most."""
    mine = padded(text)
    everyone = np.empty((communicator.world_size, mine.size), np.uint8)
    communicator.call("all_gather", mine, everyone.reshape(-1))
    return [theirs.tobytes().rstrip(b"\0").decode(errors="replace") for theirs in everyone]


def _what(communicator: CommunicatorCore, call: CheckedCall) -> str:
    if call.algorithm == "native":
        return "the library's own algorithm"
    return f"{'host' if call.entry is None else 'device'} arrays over {communicator.transport.name}"
