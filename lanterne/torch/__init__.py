"""lanterne as a backend of torch.distributed: `import lanterne.torch`, then `init_process_group("lanterne")`.

Needs PyTorch (extra `torch`); nothing else of lanterne imports this.

| module | what it has |
| --- | --- |
| `torch_internals` | everything that depends on how torch is made inside |
| `tensor_views`, `drafts`, `works` | tensors as arrays, pending calls, the Works that they return |
| `process_group`, `group_base`, `group_reductions`, `group_movements` | the process group and its verbs |
| `monitored_barrier`, `sparse_sums` | verbs that need more than one call |
| `accelerators`, `device_lanes`, `device_works` | streams of a device, and calls in their order |
| `device_calls`, `device_native` | verbs on device tensors: through pinned host memory, or beside torch's own backend |
| `joining`, `meeting`, `reconfigurable` | creation of groups |
| `served` | functions that torch has for its own backends only |
| `ddp_hook` | lanterne in a job of another backend |
| `resilient`, `sharded_state` | training loops that survive deaths, with each rank's state whole or a part |
| `rebalancing` | microbatches by the speed of ranks |
| `late_report`, `step_log` | stragglers, step by step |
"""

import torch

from lanterne.kernels.cpu.jit import unmap_compiler
from lanterne.torch.ddp_hook import comm_hook
from lanterne.torch.joining import Options, load_libraries, register_backend
from lanterne.torch.late_report import LateReport, report
from lanterne.torch.process_group import LanterneGroup
from lanterne.torch.rebalancing import MicrobatchShares, rebalance
from lanterne.torch.reconfigurable import ReconfigurableGroup
from lanterne.torch.resilient import run_resilient, run_resilient_sharded
from lanterne.torch.served import serve_all
from lanterne.torch.step_log import LateStep
from lanterne.torch.torch_internals import after_each_step, warn_if_untested

__all__ = [
    "LanterneGroup",
    "LateReport",
    "LateStep",
    "MicrobatchShares",
    "Options",
    "ReconfigurableGroup",
    "comm_hook",
    "rebalance",
    "report",
    "run_resilient",
    "run_resilient_sharded",
]

warn_if_untested(torch.__version__)
load_libraries()
register_backend()
serve_all()
# The first steps compile all that training needs.
after_each_step(lambda *_: unmap_compiler())
