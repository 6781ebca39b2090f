"""How processes meet in memory that they share: one C function copies, stamps, waits and folds.

A plain C function, so that a whole call costs one of Python's, without the interpreter's lock. What it copies and folds
is a table (collectives/shared/pieces.py makes it). Stores and loads of stamps are ordered (release, acquire): who sees
one sees all that was written before it, on every processor.
"""

import ctypes
import functools
import platform
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

from lanterne.kernels.cpu.jit import compile_ir, divide_function, fold_function
from lanterne.kernels.dtypes import Dtype, kernel_op

# How often it looks in vain before it returns, some 10 us; where ranks share cores, with a yield each, which lasts as
# long as others compute: for so many nanoseconds at most.
POLLS, POLLS_SHARED, YIELDS_NS = 400, 400, 500_000
# After so many pieces in a row it returns, too: signals are Python's.
PIECES_AT_ONCE = 64
STAMP_NUMBERS = 0x7FFFFFFF
# The prime of FNV-1a of 32 bits: a call's digest is mixed with that of the calls before it.
DIGEST_FACTOR = 16777619
# What advance_function returns: nothing has moved; something has; the call is done on this rank.
IDLE, MOVED, DONE = range(3)

# Words of 64 bits: of a call, and of the memory that it goes through. Addresses have `_at`.
CALL = (
    *("in_at", "out_at", "start", "written", "read"),
    *("until_ns", "pieces", "step", "first", "sources", "digest", "full_at", "last_at", "memory_at"),
)
MEMORY = (
    *("number", "finished", "free_until", "calls"),
    *("world_size", "rank", "lines_at", "line_at", "slots_at"),
)
# A shape: so many words, then a pair for each rank where it folds, then its copies.
SHAPE = ("writes", "reads", "fold_count", "fold_out")
COPY_WORDS, FOLD_WORDS = 5, 2
# Places of a copy that are no rank's slot.
IN, OUT = -1, -2


class MeetLayout(NamedTuple):
    """How the memory is laid out: `slots` of `slot_nbytes` of a rank, and its line of `line_nbytes`.

    A line has the number of the last piece that its rank is done with, then a stamp for each slot.
    """

    slots: int
    slot_nbytes: int
    line_nbytes: int


class Folding(NamedTuple):
    """What a call folds: `op` may be mean; `most_inputs`, of one kernel: more ranks take several."""

    op: str
    dtype: Dtype
    world_size: int
    most_inputs: int


@functools.cache
def advance_function(layout: MeetLayout, folding: Folding | None, shared: bool) -> Callable[[int, int], int]:
    """The C function `(begins, call)`, which takes a call as far as it goes; compiled on first use.

    Piece by piece it writes into this rank's slots where all are done with what was there and stamps that, and once
    the ranks `first` to `first + sources` have stamped a piece, reads it: copies, and a fold of what all have. It
    returns when the call is done, when nothing has moved for some looks, or after PIECES_AT_ONCE.

    Args:
        folding: None: it only copies.
        shared: ranks share cores: between two looks it lets others have this one.

    `begins` is not 0 the first time; `call` the address of the words CALL, whose `memory_at` is that of MEMORY. The
    pieces are all of the shape at `full_at` but for the last one, each `step` bytes on in input and output. Others
    learn that this rank is done with a piece with its next stamp, or while it waits for room.
    """
    kernels: list[Any] = []
    ir = _advance_ir(layout, shared, "" if folding is None else _folds(folding, kernels), folding)
    function: Any = compile_ir(ir, [ctypes.c_void_p], ctypes.c_int64)
    # Of two threads that compile a fold at the same time one has a function that no cache keeps.
    function.kernels = kernels
    return cast("Callable[[int, int], int]", function)


def stamp_of(number: int, digest: int) -> int:
    """The stamp of piece `number` of a call: a positive 64-bit number, the same again after 2 to the 31 pieces."""
    return (number & STAMP_NUMBERS) << 32 | digest


def _folds(folding: Folding, kernels: list[Any]) -> str:
    """IR that calls the kernels, which are added to `kernels`, with %fold_count, %out and an input %p of each rank."""
    op, dtype, world_size, most = folding
    lines = []
    start = 0
    while start < world_size:
        # The second kernel and those after it go on from the output.
        stop = min(world_size, start + most - (start > 0))
        inputs = [*(["%out"] if start else []), *(f"%p{rank}" for rank in range(start, stop))]
        arguments = [ctypes.c_void_p] * (len(inputs) + 1)
        kernels.append(_c_function(fold_function(kernel_op(op, dtype), dtype, len(inputs)), arguments))
        pointers = ", ".join(f"ptr {name}" for name in ("%out", *inputs))
        lines.append(f"  call void {_pointer(kernels[-1])}(i64 %fold_count, {pointers})")
        start = stop
    if op == "mean":
        divide = divide_function(dtype)
        kernels.append(_c_function(divide, [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_double]))
        number = f"double {float(world_size)!r}"
        lines.append(f"  call void {_pointer(kernels[-1])}(i64 %fold_count, ptr %out, ptr %out, {number})")
    return "\n".join(lines)


def _c_function(function: Any, argument_types: list[Any]) -> Any:
    """`function`, of compile_ir or, of long doubles, of Python, as one that C can call."""
    return ctypes.CFUNCTYPE(None, ctypes.c_size_t, *argument_types)(function) if type(function) is partial else function


def _pointer(function: Any) -> str:
    """IR of the address of a C function, which has to live as long as the code."""
    return f"inttoptr (i64 {ctypes.cast(function, ctypes.c_void_p).value} to ptr)"


# CLOCK_MONOTONIC, in nanoseconds.
_NOW = """
declare i32 @clock_gettime(i32, ptr)
define i64 @now_ns() {
  %time = alloca [2 x i64]
  %failed = call i32 @clock_gettime(i32 1, ptr %time)
  %nanoseconds_p = getelementptr i64, ptr %time, i64 1
  %seconds = load i64, ptr %time
  %nanoseconds = load i64, ptr %nanoseconds_p
  %whole = mul i64 %seconds, 1000000000
  %now = add i64 %whole, %nanoseconds
  ret i64 %now
}
"""


def _pause(shared: bool) -> str:
    """What a loop that only waits does: yield, or tell the processor."""
    if shared:
        return "call i32 @sched_yield()"
    return "call void @llvm.x86.sse2.pause()" if platform.machine() in ("x86_64", "AMD64") else ""


def _patience(shared: bool) -> str:
    """IR of %enough, whether a loop that has %polls looks left is to end."""
    if not shared:
        return "  %enough = icmp eq i64 %polls, 0"
    return f"""
{_load(CALL, "%call", "until_ns")}
  %now = call i64 @now_ns()
  %is_first = icmp eq i64 %polls, {POLLS_SHARED}
  %then = add i64 %now, {YIELDS_NS}
  %until = select i1 %is_first, i64 %then, i64 %until_ns
  store i64 %until, ptr %until_ns_p
  %none = icmp eq i64 %polls, 0
  %late = icmp sgt i64 %now, %until
  %enough = or i1 %none, %late"""


def _load(words: Sequence[str], pointer: str, *names: str) -> str:
    """IR that loads words of these names into values of these names."""
    return "\n".join(f"{_at(words, pointer, name)}\n  %{name} = load i64, ptr %{name}_p" for name in names)


def _at(words: Sequence[str], pointer: str, name: str) -> str:
    return f"  %{name}_p = getelementptr i64, ptr {pointer}, i64 {words.index(name)}"


def _advance_ir(layout: MeetLayout, shared: bool, folds: str, folding: Folding | None) -> str:
    slots, slot_nbytes, line_nbytes = layout
    pause = _pause(shared)
    fold_ranks = 0 if folding is None else folding.world_size
    fold_inputs = "\n".join(
        f"""  %w{rank} = getelementptr i64, ptr %shape, i64 {len(SHAPE) + FOLD_WORDS * rank}
  %p{rank} = call ptr @place(ptr %call, ptr %memory, ptr %w{rank}, i64 %number, i64 %shift)"""
        for rank in range(fold_ranks)
    )
    return f"""
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
{f"declare {pause.removeprefix('call ')}" if pause else ""}
{_NOW if shared else ""}

; Where the two words at %words say: a place, and bytes from its beginning.
define ptr @place(ptr %call, ptr %memory, ptr %words, i64 %number, i64 %shift) {{
  %which = load i64, ptr %words
  %offset_p = getelementptr i64, ptr %words, i64 1
  %offset = load i64, ptr %offset_p
  %is_slot = icmp sge i64 %which, 0
  br i1 %is_slot, label %slot, label %array
slot:
{_load(MEMORY, "%memory", "slots_at")}
  %turn = urem i64 %number, {slots}
  %before = mul i64 %which, {slots}
  %index = add i64 %before, %turn
  %slot_offset = mul i64 %index, {slot_nbytes}
  br label %end
array:
  %word = sub i64 {IN}, %which
  %array_p = getelementptr i64, ptr %call, i64 %word
  %array_at = load i64, ptr %array_p
  br label %end
end:
  %base = phi i64 [%slots_at, %slot], [%array_at, %array]
  %more = phi i64 [%slot_offset, %slot], [%shift, %array]
  %start = add i64 %base, %more
  %address = add i64 %start, %offset
  %pointer = inttoptr i64 %address to ptr
  ret ptr %pointer
}}

define void @copy(ptr %call, ptr %memory, ptr %table, i64 %count, i64 %number, i64 %shift) {{
entry:
  br label %loop
loop:
  %i = phi i64 [0, %entry], [%next, %one]
  %over = icmp uge i64 %i, %count
  br i1 %over, label %end, label %one
one:
  %row = mul i64 %i, {COPY_WORDS}
  %to_p = getelementptr i64, ptr %table, i64 %row
  %from_p = getelementptr i64, ptr %to_p, i64 2
  %nbytes_p = getelementptr i64, ptr %to_p, i64 4
  %to = call ptr @place(ptr %call, ptr %memory, ptr %to_p, i64 %number, i64 %shift)
  %from = call ptr @place(ptr %call, ptr %memory, ptr %from_p, i64 %number, i64 %shift)
  %nbytes = load i64, ptr %nbytes_p
  call void @llvm.memcpy.p0.p0.i64(ptr %to, ptr %from, i64 %nbytes, i1 false)
  %next = add i64 %i, 1
  br label %loop
end:
  ret void
}}

; The shape of piece %index.
define ptr @shape(ptr %call, i64 %index) {{
{_load(CALL, "%call", "pieces", "full_at", "last_at")}
  %next = add i64 %index, 1
  %is_last = icmp eq i64 %next, %pieces
  %at = select i1 %is_last, i64 %last_at, i64 %full_at
  %shape = inttoptr i64 %at to ptr
  ret ptr %shape
}}

; Whether all are done with what is in the slot of the next piece.
define i1 @has_room(ptr %memory) {{
entry:
{_load(MEMORY, "%memory", "number", "free_until")}
  %known = icmp slt i64 %number, %free_until
  br i1 %known, label %yes, label %ask
yes:
  ret i1 true
ask:
{_load(MEMORY, "%memory", "finished", "world_size", "rank", "lines_at", "line_at")}
  %lines = inttoptr i64 %lines_at to ptr
  %line = inttoptr i64 %line_at to ptr
  store atomic i64 %finished, ptr %line release, align 8
  br label %loop
loop:
  %i = phi i64 [0, %ask], [%next, %one]
  %least = phi i64 [%finished, %ask], [%less, %one]
  %over = icmp uge i64 %i, %world_size
  br i1 %over, label %end, label %one
one:
  %offset = mul i64 %i, {line_nbytes}
  %done_p = getelementptr i8, ptr %lines, i64 %offset
  %done = load atomic i64, ptr %done_p acquire, align 8
  %is_less = icmp slt i64 %done, %least
  %less = select i1 %is_less, i64 %done, i64 %least
  %next = add i64 %i, 1
  br label %loop
end:
  %until = add i64 %least, {slots}
  store i64 %until, ptr %free_until_p
  %has = icmp slt i64 %number, %until
  ret i1 %has
}}

define i64 @stamp(ptr %memory, i64 %number) {{
{_load(MEMORY, "%memory", "calls")}
  %low = and i64 %number, {STAMP_NUMBERS}
  %high = shl i64 %low, 32
  %stamp = or i64 %high, %calls
  ret i64 %stamp
}}

; Whether all sources have stamped piece %number.
define i1 @is_there(ptr %call, ptr %memory, i64 %number) {{
entry:
{_load(CALL, "%call", "first", "sources")}
{_load(MEMORY, "%memory", "lines_at")}
  %stamp = call i64 @stamp(ptr %memory, i64 %number)
  %turn = urem i64 %number, {slots}
  %in_line = mul i64 %turn, 8
  %last = add i64 %first, %sources
  %lines = inttoptr i64 %lines_at to ptr
  br label %loop
loop:
  %i = phi i64 [%first, %entry], [%next, %one]
  %over = icmp uge i64 %i, %last
  br i1 %over, label %yes, label %one
one:
  %line = mul i64 %i, {line_nbytes}
  %offset = add i64 %line, %in_line
  %stamps = getelementptr i8, ptr %lines, i64 8
  %seen_p = getelementptr i8, ptr %stamps, i64 %offset
  %seen = load atomic i64, ptr %seen_p acquire, align 8
  %next = add i64 %i, 1
  %same = icmp eq i64 %seen, %stamp
  br i1 %same, label %loop, label %no
yes:
  ret i1 true
no:
  ret i1 false
}}

; Writes and stamps the next piece.
define void @write(ptr %call, ptr %memory) {{
{_load(CALL, "%call", "written", "step")}
{_load(MEMORY, "%memory", "number", "finished", "line_at")}
  %next = add i64 %number, 1
  %shape = call ptr @shape(ptr %call, i64 %written)
{_load(SHAPE, "%shape", "writes")}
  %table = getelementptr i64, ptr %shape, i64 {len(SHAPE) + FOLD_WORDS * fold_ranks}
  %shift = mul i64 %written, %step
  call void @copy(ptr %call, ptr %memory, ptr %table, i64 %writes, i64 %next, i64 %shift)
  %line = inttoptr i64 %line_at to ptr
  store atomic i64 %finished, ptr %line release, align 8
  %turn = urem i64 %next, {slots}
  %word = add i64 %turn, 1
  %stamp_p = getelementptr i64, ptr %line, i64 %word
  %stamp = call i64 @stamp(ptr %memory, i64 %next)
  store atomic i64 %stamp, ptr %stamp_p release, align 8
  store i64 %next, ptr %number_p
  %more = add i64 %written, 1
  store i64 %more, ptr %written_p
  ret void
}}

; Reads the next piece, which is there.
define void @take(ptr %call, ptr %memory) {{
{_load(CALL, "%call", "start", "read", "step", "sources")}
{_load(MEMORY, "%memory", "finished", "free_until", "world_size")}
  %number = add i64 %start, %read
  %shape = call ptr @shape(ptr %call, i64 %read)
{_load(SHAPE, "%shape", "writes", "reads")}
  %skipped = mul i64 %writes, {COPY_WORDS}
  %first = add i64 %skipped, {len(SHAPE) + FOLD_WORDS * fold_ranks}
  %table = getelementptr i64, ptr %shape, i64 %first
  %shift = mul i64 %read, %step
  call void @copy(ptr %call, ptr %memory, ptr %table, i64 %reads, i64 %number, i64 %shift)
  call void @fold(ptr %call, ptr %memory, ptr %shape, i64 %number, i64 %shift)
  store i64 %number, ptr %finished_p
  %next = add i64 %read, 1
  store i64 %next, ptr %read_p
  ; Who is in this call is done with the pieces before it.
  %all = icmp eq i64 %sources, %world_size
  %until = add i64 %start, {slots - 1}
  %later = icmp sgt i64 %until, %free_until
  %learns = and i1 %all, %later
  %free = select i1 %learns, i64 %until, i64 %free_until
  store i64 %free, ptr %free_until_p
  ret void
}}

define void @fold(ptr %call, ptr %memory, ptr %shape, i64 %number, i64 %shift) {{
{_load(SHAPE, "%shape", "fold_count", "fold_out")}
{_load(CALL, "%call", "out_at")}
  %none = icmp eq i64 %fold_count, 0
  br i1 %none, label %end, label %some
some:
  %piece = add i64 %out_at, %shift
  %to = add i64 %piece, %fold_out
  %out = inttoptr i64 %to to ptr
{fold_inputs}
{folds}
  br label %end
end:
  ret void
}}

define i64 @kernel(i64 %begins, ptr %call) {{
entry:
{_load(CALL, "%call", "memory_at", "pieces")}
{_at(CALL, "%call", "start")}
{_at(CALL, "%call", "written")}
{_at(CALL, "%call", "read")}
  %memory = inttoptr i64 %memory_at to ptr
  %is_new = icmp ne i64 %begins, 0
  br i1 %is_new, label %begin, label %again
begin:
{_load(MEMORY, "%memory", "number", "calls")}
{_load(CALL, "%call", "digest")}
  ; Of all calls up to this one: a root reads nothing, so it finds another root's call by the next one's stamps.
  %spread = mul i64 %calls, {DIGEST_FACTOR}
  %both = add i64 %spread, %digest
  %chained = and i64 %both, {0xFFFFFFFF}
  store i64 %chained, ptr %calls_p
  %start = add i64 %number, 1
  store i64 %start, ptr %start_p
  store i64 0, ptr %written_p
  store i64 0, ptr %read_p
  br label %again
again:
  %start_now = load i64, ptr %start_p
  br label %loop
loop:
  %polls = phi i64 [{POLLS_SHARED if shared else POLLS}, %again], [{POLLS_SHARED if shared else POLLS}, %on],
    [%fewer, %pause]
  %moved = phi i64 [{IDLE}, %again], [{MOVED}, %on], [%moved, %pause]
  %taken = phi i64 [0, %again], [%now_taken, %on], [%taken, %pause]
  %read = load i64, ptr %read_p
  %is_done = icmp uge i64 %read, %pieces
  br i1 %is_done, label %done, label %going
done:
  ret i64 {DONE}
going:
  %long = icmp uge i64 %taken, {PIECES_AT_ONCE}
  br i1 %long, label %end, label %may_write
may_write:
  %written = load i64, ptr %written_p
  %has_more = icmp ult i64 %written, %pieces
  br i1 %has_more, label %room, label %look
room:
  %has_room = call i1 @has_room(ptr %memory)
  br i1 %has_room, label %write, label %look
write:
  call void @write(ptr %call, ptr %memory)
  br label %look
look:
  %wrote = phi i1 [false, %may_write], [false, %room], [true, %write]
  %written_now = load i64, ptr %written_p
  %is_ours = icmp ult i64 %read, %written_now
  br i1 %is_ours, label %theirs, label %missed
theirs:
  %next = add i64 %start_now, %read
  %there = call i1 @is_there(ptr %call, ptr %memory, i64 %next)
  br i1 %there, label %take, label %missed
take:
  call void @take(ptr %call, ptr %memory)
  %one_more = add i64 %taken, 1
  br label %on
missed:
  br i1 %wrote, label %on, label %idle
on:
  %now_taken = phi i64 [%one_more, %take], [%taken, %missed]
  br label %loop
idle:
{_patience(shared)}
  br i1 %enough, label %end, label %pause
pause:
  {pause}
  %fewer = sub i64 %polls, 1
  br label %loop
end:
  ret i64 %moved
}}
"""
