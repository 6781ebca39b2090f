"""lanterne as a backend of torch.distributed: `import lanterne.torch`, then `init_process_group("lanterne")`.

Needs PyTorch (extra `torch`); nothing else of lanterne imports this. `torch_internals` has all that depends on how
torch is made inside, `tensor_views` tensors as arrays, `drafts` calls in the making, `works` what they return,
`process_group` the verbs over `group_base`, `monitored_barrier` a barrier that says who did not come, `joining` how
groups come to be, `reconfigurable` one that comes to be again, `served` functions that torch has for its own backends
only, `ddp_hook` lanterne in a job of another backend, `late_report` who was late.
"""

from lanterne.kernels.cpu.jit import unmap_compiler
from lanterne.torch.ddp_hook import comm_hook
from lanterne.torch.joining import NAME, Options, create, load_libraries
from lanterne.torch.late_report import LateReport, report
from lanterne.torch.process_group import LanterneGroup
from lanterne.torch.reconfigurable import ReconfigurableGroup
from lanterne.torch.served import serve_all
from lanterne.torch.step_log import LateStep
from lanterne.torch.torch_internals import after_each_step, register

__all__ = ["LanterneGroup", "LateReport", "LateStep", "Options", "ReconfigurableGroup", "comm_hook", "report"]

load_libraries()
register(NAME, create)
serve_all()
# The first steps compile all that training needs.
after_each_step(lambda *_: unmap_compiler())
