"""This folder says of a plan whether it is right (`check_plan`), when each action starts (`simulate`,
`ready_first`, `devices`), and what that means (`analysis`, `gantt`, `chrome_trace`). All times come from one loop,
`event_loop`, which `compiled` makes fast for planners; `program` and `precedence` make plans into what it runs. It is
pure but for `gantt`, which writes picture files with Matplotlib, imported when it draws.
"""
