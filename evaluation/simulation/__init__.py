"""This folder holds a world that a seed replays: ranks and store in one process, under one clock and one network.

`baton` lets one thread run at a time, `network` has its sockets, `simulated_machine` is what ranks are handed in place
of the real machine. `scenario` draws what ranks do and what befalls them (`fate`). Ranks make `calls`, use the store's
`services`, come to its board (`seats`) or have `delegates`; `world` runs them, and `judge` says what went wrong;
`shrink` finds less that does. The commands are `simulate` and `replay`.
"""
