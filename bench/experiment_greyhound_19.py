"""GREYHOUND figure 19: seconds to put a job's ranks elsewhere (S3), peer to peer against through the disk.

Both in the same processes, in turn; what goes through the disk is saved, closed, made anew and loaded, without the
start of processes, which a real restart has to wait for as well. The paper's ranks have 10 to 76 GB each.
"""

import statistics
import tempfile
from pathlib import Path

from . import move_speed
from .bars import at_least
from .pipeline_measure import on_ranks
from .units import format_nbytes, format_time

WIDTHS, QUICK_WIDTHS, TURNS = (256, 512, 1024, 1536), (256, 512), 4
BAR, PAPER_GAIN = 3.0, 6.72
COLUMNS = [("a rank's state", ""), ("peer to peer", ""), ("disk", ""), ("ratio", ""), ("losses", "")]
FIGURE_INCHES = (6, 4)
NOTES = """
paper: up to 6.72 times; bar: 3
"""


def run(quick):
    """A record per size of the state."""
    return [_record(width) for width in (QUICK_WIDTHS if quick else WIDTHS)]


def _record(width):
    with tempfile.TemporaryDirectory() as folder:
        work = {"width": width, "turns": TURNS, "path": str(Path(folder, "state.npz"))}
        found = on_ranks(move_speed.train, work, move_speed.COPIES * move_speed.PLACES, "mpi", 60.0)
    return found | {"width": width, "nbytes": move_speed.state_nbytes(width) // move_speed.PLACES}


def row(record):
    """One line of the table."""
    peer_s, disk_s = (statistics.median(record[f"{key}_s"]) for key in ("peer_to_peer", "disk"))
    told = "finite" if record["same"] else "WRONG"
    return [format_nbytes(record["nbytes"]), format_time(peer_s), format_time(disk_s), f"{disk_s / peer_s:.1f}", told]


def bars(records):
    """The least gain."""
    ratios = [statistics.median(r["disk_s"]) / statistics.median(r["peer_to_peer_s"]) for r in records]
    return [at_least("through the disk over peer to peer, least", min(ratios), BAR)]


def draw(figure, records):
    """Bars of both ways."""
    axes = figure.subplots()
    at = range(len(records))
    for shift, key, label in ((-0.2, "peer_to_peer_s", "peer to peer"), (0.2, "disk_s", "through the disk")):
        axes.bar([x + shift for x in at], [statistics.median(record[key]) for record in records], 0.38, label=label)
    axes.set_xticks(list(at), [format_nbytes(record["nbytes"]) for record in records])
    axes.set(xlabel="state of a rank", ylabel="seconds")
    axes.legend(frameon=False)
