"""This folder holds the point-to-point transports: one interface, and many ways to move bytes between ranks.

`base` has the interface (Transport, Request, Region, Send, Recv, Capabilities, make_tag), `timeouts` and `pauses` have
how long and how waits wait, and `registry` opens a transport by its name. The transports are `local` (threads of one
process), `mpi`, `ucx`, `nccl` and `tcp`; `shaped`, `staged` and `rails.spare` change what another one does.
`rank_group` has the ranks of a job (Group), `job` starts jobs and finds them, `store` is the service where ranks meet,
`board` where they record their arrivals. `door` lets in who proves the job's secret, `wire` frames what stores hear,
`duplex` what ranks tell each other over TCP, which `seal` digests and `tls` encrypts; `wrapper` has what wrappers
share, and `own_python` starts our own programs.
Importing a module loads no MPI, UCX or CUDA: opening a transport does.
"""
