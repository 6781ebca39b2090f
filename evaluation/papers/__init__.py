"""This folder holds the experiments of `./run evaluate experiment`: each redoes a figure or table of a paper.

An experiment is a module in the folder of its paper, as `experiment.Experiment` describes it. `experiment` finds it by
name, prints, writes and draws. `study`, `mitigation_study` and `watched_training` hold what several of them share. They
start processes that wait or train, over emulated links, write temporary files, and draw with Matplotlib.
"""
