"""The pictures of the page, as SVG text: iteration times with incidents, and by how much ranks come late.

Colours are those of the page's classes; nothing is drawn by a library, since a page is made anew for each look.
"""

from collections.abc import Collection, Mapping, Sequence
from html import escape
from itertools import pairwise
from math import floor, log10
from typing import Any

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 960, 240, 64, 12, 26, 22
BAR, MAX_BARS = 20, 32


def seconds(time_s: float | None) -> str:
    """A time as people read it: three digits and a unit."""
    if not time_s:
        return "-" if time_s is None else "0"
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if abs(time_s) * factor >= 1 or unit == "us":
            break
    return f"{time_s * factor:.3g} {unit}" if abs(time_s) < 1000 else f"{time_s:.0f} s"


def iteration_times(times: Mapping[str, Any], incidents: Sequence[Mapping[str, Any]]) -> str:
    """The latest iterations: what each took, what is usual, and shaded the slow spells with the ranks they name."""
    recent: Sequence[tuple[int, float]] = times["recent"]
    if len(recent) < 2:
        return ""
    first, last = recent[0][0], recent[-1][0]
    values = sorted(value for _, value in recent)
    # One long pause must not flatten all else.
    top = max(1.15 * values[int(0.98 * (len(values) - 1))], 1.3 * (times["usual_s"] or 0.0), 1e-9)

    def x(index: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (min(max(index, first), last) - first) / max(last - first, 1)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * min(value / top, 1.0)

    parts = [_grid(top, y)]
    for one in incidents:
        if one["kind"] == "slow" and (one["iterations"]["relief"] or last) >= first:
            begin, end = x(one["iterations"]["onset"]), x(one["iterations"]["relief"] or last)
            size = f'width="{max(end - begin, 2):.1f}" height="{HEIGHT - TOP - BOTTOM}"'
            parts.append(f'<rect class="spell" x="{begin:.1f}" y="{TOP}" {size}/>')
            who = ", ".join(str(rank["rank"]) for rank in one["ranks"])
            label = f"x{one['iterations']['ratio']:.2f}" + (f" rank {who}" if who else "")
            parts.append(f'<text class="name" x="{min(begin, WIDTH - 120):.1f}" y="{TOP - 8}">{escape(label)}</text>')
    if times["usual_s"]:
        level = f"{y(times['usual_s']):.1f}"
        parts.append(f'<line class="usual" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{level}" y2="{level}"/>')
    # Iterations that were not timed are gaps, no lines.
    commands = [f"M{x(recent[0][0]):.1f} {y(recent[0][1]):.1f}"]
    for (before, _), (index, value) in pairwise(recent):
        commands.append(f"{'L' if index == before + 1 else 'M'}{x(index):.1f} {y(value):.1f}")
    parts.append(f'<path class="time" d="{"".join(commands)}"/>')
    for index, anchor in ((first, "start"), (last, "end")):
        parts.append(f'<text class="axis" x="{x(index):.1f}" y="{HEIGHT - 6}" text-anchor="{anchor}">{index}</text>')
    about = f"iterations {first} to {last}; the dashed line is what is usual"
    return _svg(WIDTH, HEIGHT, about, parts)


def _grid(top: float, y: Any) -> str:
    step = 10 ** floor(log10(top))
    step = next(step * part for part in (1.0, 0.5, 0.2, 0.1) if top / (step * part) >= 2.5)
    lines = []
    for number in range(int(top / step) + 1):
        at = f"{y(number * step):.1f}"
        lines.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at}" y2="{at}"/>')
        place = f'x="{LEFT - 6}" y="{at}" dy="4" text-anchor="end"'
        lines.append(f'<text class="axis" {place}>{seconds(number * step)}</text>')
    return "".join(lines)


def lateness(late: Sequence[Mapping[str, Any]], blamed: Collection[int]) -> str:
    """A bar for each rank that comes late, those of the largest first where there are many."""
    known = [one for one in late if one["late_s"]]
    worst = sorted(known, key=lambda one: -one["late_s"])[:MAX_BARS]
    if not worst:
        return ""
    top = worst[0]["late_s"]
    parts = []
    for row, one in enumerate(sorted(worst, key=lambda one: one["rank"])):
        y = row * BAR
        width = max((WIDTH - 320) * one["late_s"] / top, 1.0)
        named = " named" if one["rank"] in blamed else ""
        who = f"rank {one['rank']}" + (f" on {one['host']}" if one["host"] else "")
        parts.append(f'<text class="name" x="0" y="{y + 14}">{escape(who[:34])}</text>')
        parts.append(f'<rect class="bar{named}" x="220" y="{y + 3}" width="{width:.1f}" height="{BAR - 6}" rx="2"/>')
        parts.append(f'<text class="axis" x="{226 + width:.1f}" y="{y + 14}">{seconds(one["late_s"])}</text>')
    more = len(known) - len(worst)
    note = f'<p class="dim">and {more} ranks more that come late by less</p>' if more else ""
    return _svg(WIDTH, len(worst) * BAR, "by how much ranks come late in an iteration", parts) + note


def _svg(width: int, height: int, about: str, parts: Sequence[str]) -> str:
    inside = f"<title>{escape(about)}</title>{''.join(parts)}"
    return f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(about)}">{inside}</svg>'
