"""CrossPipe table 6: as table 5, in four datacenters of two stages each.

All simulated, at the paper's scale.
"""

from evaluation.papers.crosspipe.table_5 import (
    COLUMNS,
    FIGURE_INCHES,
    NOTES,
    SOLVER_S,
    draw,
    findings,
    paper_values,
    row,
    rows_of,
)
from evaluation.papers.experiment import Record

__all__ = ["COLUMNS", "FIGURE_INCHES", "NOTES", "SOLVER_S", "draw", "findings", "paper_values", "row"]

SLOW_LINKS = (1, 3, 5)
PAPER = """
.149 .133 .119 .138 .138 .122   .173 .168 .160 - .167 .157   - - - .123 .119 .115
.177 .158 .161 .155 .148 .141   .198 .190 .181 - .173 .163   - - - .126 .123 .115
.269 .249 .339 .216 .217 .286   .274 .269 .331 - .198 .290   - - - .158 .162 .262
.268 .248 .337 .200 .197 .214   .274 .269 .330 - .184 .177   - - - .138 .138 .139
.359 .338 .512 .268 .271 .339   .349 .346 .479 - .213 .295   - - - .178 .178 .264
"""


def run(quick: bool, limit_s: float) -> list[Record]:
    """One record per delay and case."""
    return rows_of(SLOW_LINKS, PAPER, quick, limit_s)
