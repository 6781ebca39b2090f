"""The setting that ADAPTRA's figures share: problems, systems, and what of it is fitted to which printed value.

The paper prints no durations, microbatches or sends under way. Figure 14 fixes them here, and every other figure on
processes takes them as they are. Delegates are processes that send over TCP, also between ranks of one host.
"""

from typing import Any

from evaluation.papers.study import System
from lanterne.pipeline.plan.problem import Problem

# Times in ms. Figure 14 prints four makespans and a busy time.
GPT_7B = Problem(4, 12, 8.8, 10.4, 5.6, [7.5, 7.5, 7.5])
# A stage is as large as one of the 7B model.
GPT_14B = Problem(8, 24, 8.8, 10.4, 5.6, 0)
# The authors' published logs have its warm-ups.
ZERO_BUBBLE = "zb_h2"
# One send may be under way while the rank computes.
IN_ORDER: dict[str, Any] = {"queue": 1}
DELEGATES: dict[str, Any] = {"rails": ["tcp"]}
SYSTEMS = {
    "1F1B": System("1f1b", "inline", options=IN_ORDER),
    "ZB": System(ZERO_BUBBLE, "inline", options=IN_ORDER),
    "ADAPTRA-CPU": System(ZERO_BUBBLE, "delegate", options=DELEGATES),
    "ADAPTRA": System("adaptra", "delegate", adapts=True, options=DELEGATES),
    "best": System("best", "delegate", adapts=True, options=DELEGATES),
}
NOTES = """
fitted to figure 14, the same in all figures: durations, 3 microbatches a stage, one send under way; ZB is zb_h2
delegates: a process on each rank, over TCP
"""
UNPRINTED = "the paper prints no durations, microbatches or sends under way; those of figure 14 are taken"
BLOCKS_MORE = (
    "the paper's runs block more than sends in order do: in 294 simulated settings (8 to 64 microbatches, 7 shares of "
    "F, B and W, ZB-H1 and -H2, 0 to 2 sends under way) those take at most 1.53 times as long as the same plan over "
    "delegates, the paper's 1.97 times"
)
