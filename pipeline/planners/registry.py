"""Every scheduler by name.

A scheduler is a function `f(problem, **options) -> Plan`. It names itself in the plan's `scheduler`, chooses the
placement, and raises InputError for a problem that it cannot plan. Its options are keyword-only and have defaults; one
that takes long has `time_limit_s`. A plan that a static schedule makes may exceed the problem's memory: `check` tells.
"""

from importlib import import_module

from lanterne.errors import InputError, one_of

# name -> (module of lanterne, function, one line of help); a module is imported when its scheduler is asked for.
SCHEDULERS = {
    "gpipe": ("pipeline.schedules.gpipe", "gpipe", "all forwards, then all backwards"),
    "1f1b": ("pipeline.schedules.one_f_one_b", "one_f_one_b", "one forward, one backward; backward fused"),
    "interleaved_1f1b": (
        "pipeline.schedules.interleaved_1f1b",
        "interleaved_1f1b",
        "1F1B with two smaller stages per rank, around the loop",
    ),
    "zb_h1": ("pipeline.schedules.zb_h1", "zb_h1", "1F1B with W put off, in the same memory"),
    "zb_h2": ("pipeline.schedules.zb_h2", "zb_h2", "twice the warm-up, no bubbles without delays"),
    "zb_v": ("pipeline.schedules.zb_v", "zb_v", "two smaller stages per rank in a V, no bubbles in the memory of 1F1B"),
    "alternating": (
        "pipeline.schedules.alternating",
        "alternating",
        "B and F strictly in turn, W last, with a given slack",
    ),
    "adaptra": ("pipeline.planners.adaptra", "adaptra", "ADAPTRA: warm-up counts that absorb the links' delays"),
    "crosspipe": (
        "pipeline.planners.crosspipe",
        "crosspipe",
        "CrossPipe's greedy: knows latency, bandwidth, memory; W in pieces",
    ),
    "crosspipe_wave": (
        "pipeline.planners.crosspipe",
        "crosspipe_wave",
        "the same with two half-size stages per rank, there and back",
    ),
    "optimal": (
        "pipeline.planners.optimal",
        "optimal",
        "CrossPipe's optimal of whole actions: a constraint solver, within a time limit",
    ),
    "best": (
        "pipeline.planners.best",
        "best",
        "ours: the best of many, then searched, with a bound; one stage per rank unless told",
    ),
}


def load(name):
    """The function of scheduler `name`.

    Raises:
        InputError: an unknown name.
    """
    if name not in SCHEDULERS:
        raise InputError(f"scheduler: {one_of(name, SCHEDULERS)}")
    module, function, _ = SCHEDULERS[name]
    return getattr(import_module(f"lanterne.{module}"), function)


def plan(problem, scheduler, **options):
    """The plan that `scheduler` makes for `problem`; `options` as the scheduler has them."""
    return load(scheduler)(problem, **options)
