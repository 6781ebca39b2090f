"""How processes meet in memory that they share: a word for each, and a loop that looks at them.

A plain C function, so that a look at the words of all ranks costs one call, without the interpreter's lock. Stores and
loads are ordered (release, acquire): who sees a stamp sees all that was written before it, on every processor.
"""

import ctypes
import functools
import platform
from collections.abc import Callable
from typing import Any, cast

from lanterne.kernels.cpu.jit import compile_ir, fold_function
from lanterne.kernels.dtypes import Dtype

# How often a word is looked at before the function returns, some 10 us; where ranks share cores, with a yield each.
POLLS, POLLS_SHARED = 400, 40
STAMP_NUMBERS = 0x7FFFFFFF
# What exchange_function takes.
WORDS = ("in", "out", "nbytes", "count", "digest", "stamps", "mine", "done", "slots", "my_slots")


@functools.cache
def meet_function(stride_nbytes: int, shared: bool) -> Callable[[int, int, int, int, int, int, int], int]:
    """The C function `(count, first, stamp, done, finished, mine, told)`, addresses as ints; compiled on first use.

    It stores `finished` at `done`, and `told` at `mine` unless that is 0; then looks at the `count` words from `first`
    on, `stride_nbytes` apart, until each has been seen to be `stamp`. Returns how many have, from the first on.

    Args:
        shared: ranks share cores: between two looks it lets others have this one.
    """
    return compile_ir(
        _meet_ir("kernel", stride_nbytes, shared),
        [ctypes.c_void_p, *[ctypes.c_int64, ctypes.c_void_p] * 2, ctypes.c_int64],
        ctypes.c_int64,
    )


@functools.cache
def exchange_function(
    op: str, dtype: Dtype, num_ranks: int, slots: int, slot_nbytes: int, stride_nbytes: int, shared: bool
) -> Callable[[int, int], int]:
    """The C function `(number, words)`: a whole small reduction in one call; compiled on first use.

    It copies the input into the slot of piece `number` of this rank, stamps that, looks for the stamps of all, as
    `meet_function` does, and if they are there folds the slots of all ranks into the output, in their order. Returns
    how many were there, from rank 0 on.

    Args:
        op, dtype: as of kernels.reduce.fold.
        words: address of 64-bit words: addresses of input and output, bytes and elements of each, digest (32 bits),
            addresses of the first stamp of rank 0, of this rank's first stamp, of what it is done with (the piece
            before this one), of the first slot of rank 0, and of this rank's.
    """
    fold = fold_function(op, dtype, num_ranks)
    ir = _exchange_ir(_address_of(fold), num_ranks, slots, slot_nbytes, stride_nbytes, shared)
    function: Any = compile_ir(ir, [ctypes.c_void_p], ctypes.c_int64)
    # Of two threads that compile a fold at the same time one has a function that no cache keeps.
    function.fold = fold
    return cast("Callable[[int, int], int]", function)


def _address_of(function: Callable[..., None]) -> int:
    """Where the code of a function of `compile_ir` is, as long as that lives."""
    return int(ctypes.cast(cast(Any, function), ctypes.c_void_p).value or 0)


_YIELD = "call i32 @sched_yield()"


def _pause() -> str:
    """What tells the processor that a loop only waits."""
    return "call void @llvm.x86.sse2.pause()" if platform.machine() in ("x86_64", "AMD64") else ""


def _exchange_ir(fold: int, num_ranks: int, slots: int, slot_nbytes: int, stride_nbytes: int, shared: bool) -> str:
    load = "\n".join(
        f"  %at_{name} = getelementptr i64, ptr %words, i64 {index}\n  %{name} = load i64, ptr %at_{name}"
        for index, name in enumerate(WORDS)
    )
    slot = "\n".join(
        f"  %a{rank} = add i64 %first, {rank * slots * slot_nbytes}\n  %p{rank} = inttoptr i64 %a{rank} to ptr"
        for rank in range(num_ranks)
    )
    arguments = ", ".join(f"ptr %p{rank}" for rank in range(num_ranks))
    return f"""{_meet_ir("meet", stride_nbytes, shared)}
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
define i64 @kernel(i64 %number, ptr %words) {{
{load}
  %index = urem i64 %number, {slots}
  %offset = mul i64 %index, {slot_nbytes}
  %to = add i64 %my_slots, %offset
  %to_ptr = inttoptr i64 %to to ptr
  %in_ptr = inttoptr i64 %in to ptr
  call void @llvm.memcpy.p0.p0.i64(ptr %to_ptr, ptr %in_ptr, i64 %nbytes, i1 false)
  %low = and i64 %number, {STAMP_NUMBERS}
  %high = shl i64 %low, 32
  %stamp = or i64 %high, %digest
  %step = mul i64 %index, 8
  %word = add i64 %stamps, %step
  %own = add i64 %mine, %step
  %word_ptr = inttoptr i64 %word to ptr
  %own_ptr = inttoptr i64 %own to ptr
  %done_ptr = inttoptr i64 %done to ptr
  %before = sub i64 %number, 1
  %seen = call i64 @meet(i64 {num_ranks}, ptr %word_ptr, i64 %stamp, ptr %done_ptr, i64 %before,
    ptr %own_ptr, i64 %stamp)
  %all = icmp eq i64 %seen, {num_ranks}
  br i1 %all, label %sum, label %end
sum:
  %first = add i64 %slots, %offset
{slot}
  %out_ptr = inttoptr i64 %out to ptr
  %fold = inttoptr i64 {fold} to ptr
  call void %fold(i64 %count, ptr %out_ptr, {arguments})
  br label %end
end:
  ret i64 %seen
}}
"""


def stamp_of(number: int, digest: int) -> int:
    """The stamp of piece `number` of a call: a positive 64-bit number, the same again after 2 to the 31 pieces."""
    return (number & STAMP_NUMBERS) << 32 | digest


def _meet_ir(name: str, stride_nbytes: int, shared: bool) -> str:
    polls, pause = (POLLS_SHARED, _YIELD) if shared else (POLLS, _pause())
    declaration = f"declare {pause.removeprefix('call ')}" if pause else ""
    return f"""
{declaration}
define i64 @{name}(i64 %count, ptr %first, i64 %stamp, ptr %done, i64 %finished, ptr %mine, i64 %told) {{
entry:
  store atomic i64 %finished, ptr %done release, align 8
  %silent = icmp eq ptr %mine, null
  br i1 %silent, label %rank, label %tell
tell:
  store atomic i64 %told, ptr %mine release, align 8
  br label %rank
rank:
  %i = phi i64 [0, %entry], [0, %tell], [%next, %there]
  %left = phi i64 [{polls}, %entry], [{polls}, %tell], [%polls, %there]
  %over = icmp uge i64 %i, %count
  br i1 %over, label %end, label %address
address:
  %offset = mul i64 %i, {stride_nbytes}
  %word = getelementptr i8, ptr %first, i64 %offset
  br label %look
look:
  %polls = phi i64 [%left, %address], [%fewer, %again]
  %seen = load atomic i64, ptr %word acquire, align 8
  %is_there = icmp eq i64 %seen, %stamp
  br i1 %is_there, label %there, label %missing
there:
  %next = add i64 %i, 1
  br label %rank
missing:
  %enough = icmp eq i64 %polls, 0
  br i1 %enough, label %end, label %again
again:
  {pause}
  %fewer = sub i64 %polls, 1
  br label %look
end:
  ret i64 %i
}}
"""
