"""This folder holds what a pipeline plan is: actions and their order (`Plan`), the stages on ranks (`Placement`), what
is to be planned (`Problem`), and the tables that planners and the simulator read (`costs`). It is pure: no MPI, no
processes, no files. Others import `action`, `placement`, `plan`, `problem` and `costs`; `resources` holds the parts of
a `Problem`, and `fields` what reads checked values out of JSON documents.
"""
