"""This folder holds who takes part in a job, as its store sees it.

`members` has Members, the service: which `epoch` of the job is in force, and who comes into it; `admissions` has those
who wait to be taken in, `guards` those who see to the ranks' processes, and `returns` those who come back from a store
that was lost. An epoch's `census` has who is a member, has left or has died; its ranks agree at `meetings`, and do
`together` what all take part in.
"""
