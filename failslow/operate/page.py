"""The page of jobs, as HTML without any outside part: how each is now, incidents and pictures, hosts' histories.

`whole` is the page, which fetches `body` anew every other second; without scripts it loads itself anew. All is made
here, of the status document; what programs and hosts are called is escaped.
"""

import base64
import hashlib
import time
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from lanterne.failslow.operate import pictures

REFRESH_S = 2
MAX_INCIDENTS, MAX_FRAMES = 50, 6

STYLE = """
:root { --ink:#1b1b1b; --dim:#666; --line:#d8d8d8; --paper:#fff; --card:#f6f6f4; --calm:#0072b2; --slow:#d55e00;
  --hang:#cc3311; --well:#00795b; }
@media (prefers-color-scheme: dark) { :root { --ink:#e8e8e6; --dim:#a0a09c; --line:#3c3c3a; --paper:#181817;
  --card:#232322; --calm:#56b4e9; --slow:#e69f00; --hang:#ff6b57; --well:#3fc79f; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 70rem; padding: 1rem 1.5rem 3rem; font: 15px/1.45 system-ui, sans-serif;
  color: var(--ink); background: var(--paper); }
h1 { font-size: 1.15rem; margin: .3rem 0; overflow-wrap: anywhere; }
h1 small, h3 small { color: var(--dim); font-weight: 400; }
h2 { font-size: 1rem; margin: 1.8rem 0 .5rem; } h3 { font-size: 1rem; margin: 0; }
.badge { display: inline-block; padding: .15rem .6rem; border-radius: 1rem; color: #fff; font-weight: 600; }
.well { background: var(--well); } .slow { background: var(--slow); } .hang { background: var(--hang); }
.ended { background: var(--dim); }
.figures { display: flex; flex-wrap: wrap; gap: .5rem; padding: 0; margin: .8rem 0; list-style: none; }
.figures li { background: var(--card); border-radius: .4rem; padding: .4rem .8rem; min-width: 7rem; }
.figures b { display: block; font-size: 1.25rem; } .figures span, .dim { color: var(--dim); font-size: .85rem; }
article { border-left: 4px solid var(--slow); background: var(--card); padding: .6rem .9rem; margin: .6rem 0; }
article.hang-card { border-color: var(--hang); } article.over { border-color: var(--line); }
article p { margin: .25rem 0; overflow-wrap: anywhere; }
table { border-collapse: collapse; width: 100%; } th, td { text-align: left; padding: .25rem .6rem .25rem 0;
  border-bottom: 1px solid var(--line); vertical-align: top; }
th { color: var(--dim); font-weight: 500; font-size: .85rem; white-space: nowrap; } section { overflow-x: auto; }
svg { width: 100%; min-width: 40rem; height: auto; display: block; } code { font-size: .9em; }
.axis { fill: var(--dim); font-size: 11px; } .grid { stroke: var(--line); }
.time { stroke: var(--calm); fill: none; stroke-width: 1.6; }
.usual { stroke: var(--well); stroke-dasharray: 5 4; } .spell { fill: var(--slow); opacity: .18; }
.hung { fill: var(--hang); opacity: .25; } .name { fill: var(--ink); font-size: 12px; } .bar { fill: var(--calm); }
.bar.named { fill: var(--slow); }
form { margin: 3rem auto; max-width: 22rem; } input { width: 100%; padding: .4rem; margin: .4rem 0; }
"""
SCRIPT = f"""
const main = document.querySelector("main");
async function look() {{
  try {{
    const answer = await fetch("/body", {{cache: "no-store"}});
    if (answer.status === 401) {{ location.reload(); return; }}
    if (answer.ok) main.innerHTML = await answer.text();
    document.body.dataset.live = "yes";
  }} catch (error) {{
    document.querySelector("#seen").textContent = "nothing answers any more; as of then:";
  }}
  setTimeout(look, {REFRESH_S * 1000});
}}
setTimeout(look, {REFRESH_S * 1000});
"""


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


# Nothing from elsewhere, no script but ours, in nobody's frame.
HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": (
        f"default-src 'none'; style-src {_digest(STYLE)}; script-src {_digest(SCRIPT)}; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
HEAD = (
    '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
    '<meta name="viewport" content="width=device-width, initial-scale=1">{more}<style>{style}</style></head><body>'
)


def whole(jobs: Sequence[Mapping[str, Any]], patterns: Sequence[Mapping[str, Any]]) -> str:
    """The page of the jobs with these statuses."""
    title = f"lanterne: {jobs[0]['program']}" if jobs else "lanterne"
    more = f'<noscript><meta http-equiv="refresh" content="{REFRESH_S}"></noscript>'
    head = HEAD.format(title=escape(title), more=more, style=STYLE)
    return f"{head}<main>{body(jobs, patterns)}</main><script>{SCRIPT}</script></body></html>\n"


def token_form(said: str = "") -> str:
    """The page that asks for the token."""
    return (
        f'{HEAD.format(title="lanterne", more="", style=STYLE)}<form method="post" action="/token"><h1>lanterne</h1>'
        f'<label>The token that was printed where this was started:<input name="token" type="password" autofocus>'
        f"</label><p>{escape(said)}</p><button>Show the job</button></form></body></html>\n"
    )


def body(jobs: Sequence[Mapping[str, Any]], patterns: Sequence[Mapping[str, Any]]) -> str:
    """What changes of it."""
    seen = jobs[0]["time"] if jobs else ""
    shown = "".join(map(_job, jobs)) or "<h1>No job is watched now</h1>"
    return f'<p id="seen" class="dim">{escape(seen)}</p>{shown}{_histories(patterns)}'


def _job(status: Mapping[str, Any]) -> str:
    parts = [
        _heading(status),
        _figures(status),
        _section("Iteration times", pictures.iteration_times(status["iterations"], status["incidents"])),
        _section("Who comes late, in an iteration", pictures.lateness(status["late"], _blamed(status["incidents"]))),
        _incidents(status["incidents"]),
        _hosts(status["telemetry"]),
        _section("Notes", "".join(f'<p class="dim">{escape(note)}</p>' for note in status["notes"])),
    ]
    return "".join(parts)


def _section(title: str, inside: str) -> str:
    return f"<section><h2>{title}</h2>{inside}</section>" if inside else ""


def _blamed(incidents: Iterable[Mapping[str, Any]]) -> set[int]:
    return {one["rank"] for incident in incidents if incident["lasts"] for one in incident["ranks"]}


def _heading(status: Mapping[str, Any]) -> str:
    lasting = [one["kind"] for one in status["incidents"] if one["lasts"]]
    ratio = status["iterations"]["ratio"]
    if status["ended"]:
        kind, words = "ended", "ended"
    elif "hang" in lasting:
        kind, words = "hang", "hangs"
    elif status["iterations"]["slow"]:
        kind, words = "slow", f"slow: {ratio:.2f} times the usual time" if ratio else "slow"
    else:
        kind, words = "well", "as usual" if status["iterations"]["count"] else "starting"
    return (
        f"<h1>{escape(status['program'])} "
        f"<small>from {escape(status['host'])}, since {escape(status['began'])}</small></h1>"
        f'<span class="badge {kind}">{words}</span>'
    )


def _figures(status: Mapping[str, Any]) -> str:
    times = status["iterations"]
    worst = max(status["late"], key=lambda one: one["late_s"] or 0.0, default=None)
    figures = [
        (seconds(times["median_s"]), "an iteration now"),
        (seconds(times["usual_s"]), "usual"),
        (str(times["count"]), "iterations"),
        (f"{status['reported']} of {status['ranks']}", "ranks recorded"),
        (str(sum(status["counts"].values())), "incidents"),
    ]
    if worst is not None and worst["late_s"]:
        figures.append((seconds(worst["late_s"]), f"rank {worst['rank']} comes late"))
    if status.get("saved_s") is not None:
        figures.append((seconds(status["saved_s"]), "saved by mitigation"))
    if status.get("begun_early"):
        figures.append((str(status["begun_early"]), "calls begun without the late rank"))
    shown = "".join(f"<li><b>{escape(value)}</b><span>{escape(name)}</span></li>" for value, name in figures)
    return f'<ul class="figures">{shown}</ul>'


def _incidents(incidents: Sequence[Mapping[str, Any]]) -> str:
    latest = list(reversed(incidents))[:MAX_INCIDENTS]
    return _section("Incidents", "".join(map(_incident, latest)) or '<p class="dim">none</p>')


def _incident(one: Mapping[str, Any]) -> str:
    kind = ("hang-card" if one["kind"] == "hang" else "slow-card") if one["lasts"] else "over"
    lines = [f"<h3>{escape(one['text'])} <small>{escape(one['time'])}</small></h3>"]
    for rank in one["ranks"]:
        places = {"host": "", "gpu": "GPU ", "nic": "NIC ", "pid": "pid "}
        known = ", ".join(f"{word}{rank[key]}" for key, word in places.items() if rank.get(key) is not None)
        lines.append(f"<p><b>rank {rank['rank']}</b> {escape(known)}: {escape(rank['text'])}</p>")
        frames = "<br>".join(
            f"<code>{escape(file)}:{line} in {escape(name)}</code>" for file, line, name in rank["frames"][:MAX_FRAMES]
        )
        lines.append(f"<details><summary>where its Python is</summary>{frames}</details>" if frames else "")
    lines += [f"<p>{escape(text)}</p>" for text in one["evidence"]]
    lines += [f'<p class="dim">{escape(text)}</p>' for text in one.get("telemetry", ())]
    lines.append(f"<p><b>What to do:</b> {escape(one['remedy'])}</p>")
    return f'<article class="{kind}">{"".join(lines)}</article>'


def _hosts(telemetry: Mapping[str, Mapping[str, Any]]) -> str:
    rows = []
    for host, told in telemetry.items():
        pressure = ", ".join(f"{name} {share:.0%}" for name, share in told.get("pressure", {}).items())
        nics = ", ".join(
            f"{name} {nic.get('state', '')} {nic.get('errors', 0)} errors" for name, nic in told.get("nics", {}).items()
        )
        gpus = ", ".join(
            f"{gpu['index']}: {gpu.get('sm_mhz', '?')} MHz, {gpu.get('celsius', '?')} degrees"
            + (f", throttled by {', '.join(gpu['reasons'])}" if gpu["reasons"] else "")
            for gpu in told.get("gpus", ())
        )
        absent = "; ".join(told.get("absent", ()))
        rows.append((host, pressure, nics, gpus, absent))
    return _section("Hosts", _table(("host", "work that waits", "interfaces", "GPUs", "cannot be read"), rows))


def _histories(patterns: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        (
            *(one["host"], one["pattern"], one["incidents"], f"{one['named_in']} of {one['jobs']}"),
            *(day(one["first_s"]), day(one["last_s"]), ", ".join((*one["gpus"], *one["nics"]))),
        )
        for one in patterns
    ]
    return _section(
        "Hosts across jobs", _table(("host", "pattern", "incidents", "jobs", "first", "last", "GPUs, NICs"), rows)
    )


def _table(names: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = ["".join(f"<td>{escape(str(cell))}</td>" for cell in row) for row in rows]
    if not lines:
        return ""
    head = "".join(f"<th>{name}</th>" for name in names)
    return f"<table><tr>{head}</tr>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def day(time_s: float) -> str:
    """A time of the Unix clock as people read it, UTC."""
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(time_s))


def seconds(time_s: float | None) -> str:
    """A time as people read it."""
    return pictures.seconds(time_s)
