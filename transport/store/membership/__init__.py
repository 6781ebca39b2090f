"""This folder holds the membership of a job, as its store sees it.

`members` has Members, the service: which `epoch` of the job is in force, and which ranks enter it; `admissions` has the
processes that wait to be taken in, and `guards` the parents of the ranks' processes. An epoch's `census` says which
rank is a member, has left or has died; its ranks agree at `meetings`, and do `together` what all take part in.
"""
