"""A collective schedule as data: made, proved, priced with a late rank, and drawn into late_join.svg."""

from pathlib import Path

from lanterne.collectives.algorithms.catalogue import make_schedule
from lanterne.collectives.schedule.check_schedule import check
from lanterne.collectives.schedule.cost import CostModel, late_start, price
from lanterne.collectives.schedule.draw import draw_svg

RANKS, NBYTES, DELAY_S = 8, 1 << 30, 5e-3
model = CostModel(alpha_s=3e-6, beta_s_per_byte=1 / 450e9)
exposed_s = {}
for name in ("ring", "stragglar", "late_join"):
    late = None if name == "ring" else RANKS - 1
    schedule = make_schedule("all_reduce", name, RANKS, late_rank=late)
    check(schedule)  # raises, and names the place, if a contribution is lost or counted twice
    exposed_s[name] = price(schedule, NBYTES, model, late_start(RANKS, RANKS - 1, DELAY_S)).exposed_s
    print(f"{name}: {schedule.num_rounds} rounds; {1e3 * exposed_s[name]:.2f} ms from the late rank's call to the end")
Path("late_join.svg").write_text(draw_svg(schedule))
assert exposed_s["late_join"] <= exposed_s["stragglar"] < exposed_s["ring"]
