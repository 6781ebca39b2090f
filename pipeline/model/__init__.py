"""This folder holds models that are trained in a pipeline: layers with F, B and W apart (`layer`, `layers`), losses,
the stages cut from them (`stage_layers`), two models (`stage_gpt`, `stage_mlp`), and text to train on (`text`). It
computes on NumPy or CuPy arrays; it reads files in `text` and talks to other ranks in `tensor_parallel`, over the
Communicator that it is given. Others import `stage_layers`, `stage_gpt`, `stage_mlp` and `text`.
"""
