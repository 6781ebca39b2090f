"""How a message is copied between a device and the host in chunks, and how much of it has landed: pure, without NumPy.

A stream copies the chunks of its messages in order and writes after each how many it has copied, ever. Whoever sees
this counter knows what is there: a delegate process, too, which loads neither NumPy nor CUDA.
"""

from typing import SupportsInt

CHUNK_NBYTES = 1 << 20
# Of one message. 1 MiB takes 20 us over PCIe 5.0; between two chunks the copy engine stands still while the flag is
# written, and the CPU queues them one by one.
MAX_CHUNKS = 16
# Counters are uint32.
FLAG_MODULUS = 1 << 32


def chunk_nbytes_of(nbytes: int, least: int = CHUNK_NBYTES) -> int:
    """Bytes of each chunk but the last of a message of `nbytes`: `least`, or a multiple where that would be many."""
    return least * max(1, -(-nbytes // (MAX_CHUNKS * least)))


def landed_nbytes(counter: SupportsInt, first: int, nbytes: int, chunk_nbytes: int) -> int:
    """Bytes, from the start of a message, that are there.

    Args:
        counter: of its stream, now: chunks copied, ever, modulo FLAG_MODULUS.
        first: chunks before the message's first.
    """
    num_chunks = (int(counter) - first) % FLAG_MODULUS
    # Far behind, modulo 2**32: the stream has not come to this message yet.
    return 0 if num_chunks >= FLAG_MODULUS // 2 else min(nbytes, num_chunks * chunk_nbytes)
