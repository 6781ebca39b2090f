"""The streams that a user hands in: CuPy's, another library's or an address, and which of them a call may be put on."""

from typing import Any

from lanterne.errors import InputError
from lanterne.kernels.arrays import Stream
from lanterne.kernels.cuda.device_view import stream_address
from lanterne.kernels.cuda.here import Here

_INVALID_HANDLE = 400  # cudaErrorInvalidResourceHandle
_CAPTURE_IMPLICIT = 906  # cudaErrorStreamCaptureImplicit


def own_stream(here: Here, cupy: Any, stream: Stream) -> Stream:
    """The stream object of `stream`: CuPy's, another library's, or an address; None for the current one of the device.

    Raises:
        InputError: a stream of another device, one that is gone, or one that is being captured: what a call needs
            besides its stream (messages of other ranks, a watch over them) is no part of a graph of the user's.
        TransportError: work on the device has failed.
    """
    if stream is None:
        stream = cupy.cuda.get_current_stream(here.device_id)
    elif not isinstance(stream, cupy.cuda.Stream):
        stream = ForeignStream(stream_address(stream), stream)
    if stream.device_id not in (-1, here.device_id):
        raise InputError(f"stream: got one of device {stream.device_id}, expected device {here.device_id}")
    if is_captured(here, cupy.cuda.runtime, stream):
        raise InputError(
            "stream: got one that is being captured, expected one that runs; Communicator.capture makes a graph of a "
            "call"
        )
    return stream


def is_captured(here: Here, runtime: Any, stream: Stream) -> bool:
    """Whether what `stream` is given becomes a graph; `runtime` is CuPy's module of CUDA's runtime.

    Raises:
        InputError: CUDA does not know the stream.
        TransportError: work on the device has failed.
    """
    with here:
        try:
            return bool(runtime.streamIsCapturing(stream.ptr))
        except runtime.CUDARuntimeError as error:
            # Of the default stream, while one is captured that waits for it.
            if error.status == _CAPTURE_IMPLICIT:
                return True
            if error.status == _INVALID_HANDLE:
                raise InputError(
                    f"stream: got {stream.ptr:#x}, which CUDA does not know on device {here.device_id}, expected a "
                    "stream of that device which has not been destroyed"
                ) from error
            raise
        except RuntimeError:
            # A capture that something has broken: CuPy's own error.
            return True


class ForeignStream:
    """A stream of another library, with what a CudaRuntime and CuPy's launches ask of one: its address."""

    __slots__ = ("owner", "ptr")
    device_id = -1

    def __init__(self, address: int, owner: object):
        self.ptr: int = address
        self.owner: object = owner
