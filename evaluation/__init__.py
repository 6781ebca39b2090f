"""This folder holds programs that redo our own figures: `./run evaluate NAME`, README.md lists them.

`papers` has the experiments of the four papers, `detector` and `operators` scores on jobs with a known fault, `peers`
comparisons with other libraries, `speed` and `gpu` benchmarks, `rails` paths that die, `simulation` whole jobs under
one clock, `judges` generators whose outcome a rule judges. `mitigation_job`, `validate_job` and `trace_jobs` are jobs
that several of them share; `beside` and `checkout` help them. `results` holds what was measured. None of it is
installed.
"""
