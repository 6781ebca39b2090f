"""This folder says of a plan whether it is right (`check_plan`), when each action starts (`simulate`, `rendezvous`),
and what that means (`analysis`, `gantt`, `chrome_trace`). It is pure but for `gantt`, which writes picture files with
Matplotlib, imported when it draws. Others import these modules, and `program` for the simulator's inner loops;
`engine` holds the loops themselves.
"""
