"""The loops over events of flows.py and queues.py, compiled beforehand into files beside them.

These are LLVM's code, so that no rank waits for Numba (see kernels/cpu/from_python.py). After a change in a loop

    python -m lanterne.collectives.topology.compiled_loops

writes them anew, and tests fail until then.
"""

import ctypes
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np

from lanterne.collectives.topology.event_heap import Ints, Numbers, pop, push
from lanterne.collectives.topology.flow_events import run_events, share
from lanterne.collectives.topology.queue_events import run_queues
from lanterne.kernels.cpu.jit import compile_ir

FOLDER = Path(__file__).parent


def compiled(kernel: Callable[..., None]) -> Callable[..., None]:
    """The C function of `kernel`, run_events or run_queues, from its file; an array is its address."""
    ir = (FOLDER / kernel.__module__.rpartition(".")[2]).with_suffix(".ll").read_text()
    kinds = {int: ctypes.c_int64, float: ctypes.c_double}
    _, *hints, _ = get_type_hints(kernel).values()
    return compile_ir(ir, [kinds.get(hint, ctypes.c_void_p) for hint in hints])


def addresses(arguments: Iterable[int | float | Numbers | Ints]) -> Iterator[Any]:
    """`arguments` of such a function, which have to live until it is over."""
    return (each.ctypes.data if isinstance(each, np.ndarray) else each for each in arguments)


def texts_of_ir() -> dict[str, str]:
    """What the files of loops in this folder are to have, by name."""
    from lanterne.kernels.cpu.from_python import text_of

    made = (("flow_events", run_events, (push, pop, share)), ("queue_events", run_queues, (push, pop)))
    return {f"{name}.ll": text_of(kernel, helpers, Numbers) for name, kernel, helpers in made}


if __name__ == "__main__":
    for name, text in texts_of_ir().items():
        (FOLDER / name).write_text(text)
