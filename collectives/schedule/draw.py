"""Drawings of a schedule from the same columns that run: text for terminals, SVG for papers and browsers."""

from collections.abc import Iterator, Sequence
from colorsys import hls_to_rgb
from html import escape

from lanterne.collectives.schedule.ir import REDUCE, CollectiveSchedule, Transfer, late_set

# Pixels.
_LANE, _COLUMN, _LEFT, _TOP = 34, 76, 76, 56
# Of a character of a label.
_CHARACTER = 7


def draw_text(schedule: CollectiveSchedule, width: int = 120) -> str:
    """What every rank sends in every round, as lines of at most about `width` characters.

    A cell "3>5+" says: chunk 3 to rank 5, where it is added; "3>5" without the plus overwrites. "3..6>5" are chunks 3
    to 6 in one message, "[7]" stands for 7 transfers that have no room. Rounds beyond the width wrap into further
    blocks.
    """
    cells = [_cells(schedule, index) for index in range(schedule.num_rounds)]
    late = late_set(schedule.late_rank)
    labels = [f"rank {rank}{' late' if rank in late else ''}" for rank in range(schedule.world_size)]
    head = max(map(len, [*labels, "round"]))
    lines = []
    for phase in schedule.phases:
        lines.append(f"{phase.name}: {phase.stop - phase.start} rounds")
        start = phase.start
        while start < phase.stop:
            widths: list[int] = []
            stop = start
            while stop < phase.stop and (stop == start or head + sum(widths) + 2 * len(widths) < width):
                widths.append(max(len(str(stop)), *map(len, cells[stop])))
                stop += 1
            if head + sum(widths) + 2 * len(widths) > width and len(widths) > 1:
                stop, widths = stop - 1, widths[:-1]
            lines.append("  ".join(["round".ljust(head), *(str(start + i).rjust(w) for i, w in enumerate(widths))]))
            for rank, label in enumerate(labels):
                row = [cells[start + i][rank].rjust(w) for i, w in enumerate(widths)]
                lines.append("  ".join([label.ljust(head), *row]).rstrip())
            lines.append("")
            start = stop
    return "\n".join(lines).rstrip() + "\n"


def _cells(schedule: CollectiveSchedule, index: int) -> list[str]:
    """One short text per rank on what it sends in round `index`."""
    sent: list[list[Transfer]] = [[] for _ in range(schedule.world_size)]
    for transfer in schedule.round(index):
        sent[transfer.src].append(transfer)
    return [_cell(transfers) for transfers in sent]


def _cell(transfers: Sequence[Transfer]) -> str:
    if not transfers:
        return "."
    first = transfers[0]
    chunks = sorted(transfer.chunk for transfer in transfers)
    plus = "+" if first.op == REDUCE else ""
    if len(transfers) == 1:
        return f"{first.chunk}>{first.dst}{plus}"
    one_message = all((transfer.dst, transfer.op) == (first.dst, first.op) for transfer in transfers)
    if one_message and chunks == list(range(chunks[0], chunks[0] + len(chunks))):
        return f"{chunks[0]}..{chunks[-1]}>{first.dst}{plus}"
    return f"[{len(transfers)}]{plus}"


def draw_svg(schedule: CollectiveSchedule) -> str:
    """An SVG document: a lane per rank, a column per round, an arrow per message; dashed where it is added.

    Chunks stand where their arrow begins, in its hue, which is the first one's; the late rank's lane is red.
    """
    width = _LEFT + _COLUMN * max(1, schedule.num_rounds) + 24
    height = _TOP + _LANE * schedule.world_size + 12
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="11">',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" markerHeight="6" orient="auto">'
        '<path d="M0 0L8 4L0 8z" fill="#444"/></marker></defs>',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="8" y="16" font-size="13">{escape(schedule.name)}: {schedule.num_rounds} rounds, '
        f"{schedule.num_chunks} chunks</text>",
    ]
    for number, phase in enumerate(schedule.phases):
        if phase.stop > phase.start:
            x, wide = _LEFT + _COLUMN * phase.start, _COLUMN * (phase.stop - phase.start)
            shade = "#f3f5f8" if number % 2 == 0 else "#fbf6ee"
            out.append(f'<rect x="{x}" y="{_TOP - 30}" width="{wide}" height="{height - _TOP + 24}" fill="{shade}"/>')
            out.append(f'<text x="{x + 4}" y="{_TOP - 18}" fill="#555">{escape(phase.name)}</text>')
    late = late_set(schedule.late_rank)
    for rank in range(schedule.world_size):
        y, colour = _lane(rank), "#c22" if rank in late else "#999"
        out.append(f'<line x1="{_LEFT}" y1="{y}" x2="{width - 16}" y2="{y}" stroke="{colour}" stroke-width="0.7"/>')
        out.append(f'<text x="8" y="{y + 4}" fill="{"#c22" if rank in late else "#222"}">rank {rank}</text>')
    for index in range(schedule.num_rounds):
        x = _LEFT + _COLUMN * index
        out.append(f'<line x1="{x}" y1="{_TOP - 14}" x2="{x}" y2="{height - 6}" stroke="white" stroke-width="2"/>')
        out.append(f'<text x="{x + _COLUMN // 2}" y="{_TOP - 5}" text-anchor="middle" fill="#888">{index}</text>')
        out += _arrows(schedule, index, x)
    return "\n".join([*out, "</svg>", ""])


def _colour(hue: float) -> str:
    """A dark colour of `hue`, 0 to 1, as #rrggbb: not every viewer knows hsl()."""
    return "#" + "".join(f"{round(255 * part):02x}" for part in hls_to_rgb(hue, 0.40, 0.70))


def _lane(rank: int) -> int:
    return _TOP + _LANE * rank + _LANE // 2


def _arrows(schedule: CollectiveSchedule, index: int, x: int) -> Iterator[str]:
    messages: dict[tuple[int, int], list[Transfer]] = {}
    for transfer in schedule.round(index):
        messages.setdefault((transfer.src, transfer.dst), []).append(transfer)
    labels, used = [], dict.fromkeys(range(schedule.world_size), x + 3)
    for (src, dst), transfers in messages.items():
        chunk = transfers[0].chunk
        colour = _colour(chunk / schedule.num_chunks)
        dash = ' stroke-dasharray="5 3"' if transfers[0].op == REDUCE else ""
        yield (
            f'<line x1="{x + 8}" y1="{_lane(src)}" x2="{x + _COLUMN - 5}" y2="{_lane(dst)}" stroke="{colour}" '
            f'stroke-width="1.2" stroke-opacity="0.8" marker-end="url(#tip)"{dash}/>'
        )
        label = str(chunk) if len(transfers) == 1 else f"{chunk} +{len(transfers) - 1}"
        # Read across the lines behind it.
        left, y, wide = used[src], _lane(src) - 4, _CHARACTER * len(label)
        labels.append(f'<rect x="{left}" y="{y - 9}" width="{wide}" height="11" fill="white" fill-opacity="0.8"/>')
        labels.append(f'<text x="{left}" y="{y}" fill="{colour}">{label}</text>')
        used[src] += wide + _CHARACTER
    yield from labels
