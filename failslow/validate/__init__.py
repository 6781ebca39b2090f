"""This folder holds the validation of a paused job: it measures which rank computes slowly, and which link is slow.

The tests run on all ranks, over communicators, and use CPU cores or a GPU; judge.py and links.py are pure. Others
import `validate`, `Injected` and `ValidateOptions` (validate.py, the front door), `Validation` (validation.py),
`Examiner` (suspects.py: a few suspects in a pause of training) and `LinkProbes` (probe_message.py).
"""
