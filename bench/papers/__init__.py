"""This folder holds the experiments of `lanterne experiment`: each redoes a figure or table of a paper, ours beside it.

An experiment is a module in the folder of its paper, as `experiment.Experiment` describes it; `experiment` finds it by
name, prints, writes and draws. `study`, `mitigation_study` and `watched_training` hold what several of them share. They
start processes that wait or train, over emulated links, write temporary files, and draw with Matplotlib. It is not in
the wheel, and no other folder imports it.
"""
