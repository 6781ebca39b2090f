"""The JSON form of a Topology, which a person can write:

{"schema_version": 1, "name": "two hosts", "gamma_s_per_byte": 0,
 "nodes": [[0, 1, 2, 3], [4, 5, 6, 7]],
 "links": [{"class": "inside", "alpha_s": 2e-6, "bytes_per_s": 450e9},
           {"class": "nic", "alpha_s": 5e-6, "bytes_per_s": [50e9, 25e9], "shared_by": [[0, 1, 2, 3], [4, 5, 6, 7]]}]}

`shared_by` is a list of ranks for each link, "rank" or "node" (one for each); `bytes_per_s` one number or one for each
link. `pieces` ([[nbytes, alpha_s, beta_s_per_byte], ...]) and `serial_messages` are as CostModel has them: of what was
measured, whose rates are then those of the pieces.
"""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from lanterne.collectives.schedule.cost import CostModel, Piece
from lanterne.collectives.topology.topology import INSIDE, KINDS, MESH, NIC, LinkClass, Ranks, Topology
from lanterne.errors import InputError, did_you_mean, one_of

SCHEMA_VERSION = 1
MAX_FILE_NBYTES = 16 << 20
_KEYS = ("schema_version", "name", "gamma_s_per_byte", "nodes", "links")
_LINK_KEYS = ("class", "alpha_s", "bytes_per_s", "shared_by", "pieces", "serial_messages")
# A byte that costs nothing: of a model that is all pieces.
_FREE_BYTES_PER_S = 1e30


def read_topology(path: str | Path) -> Topology:
    """The Topology of a file.

    Raises:
        InputError: it cannot be read or is none; names file and place.
    """
    try:
        with Path(path).open("rb") as file:
            text = file.read(MAX_FILE_NBYTES + 1)
    except OSError as error:
        raise InputError(f"topology {path}: {error.strerror}") from None
    if len(text) > MAX_FILE_NBYTES:
        raise InputError(f"topology {path}: got over {MAX_FILE_NBYTES} bytes, expected at most so many")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"topology {path}: got no JSON ({error})") from None
    return from_document(document, f"topology {path}")


def to_document(topology: Topology) -> dict[str, Any]:
    """The JSON document of `topology`, without loss."""
    return {
        "schema_version": SCHEMA_VERSION,
        "name": topology.name,
        "gamma_s_per_byte": topology.gamma_s_per_byte,
        "nodes": [list(ranks) for ranks in topology.nodes],
        "links": [_link_document(links) for links in topology.links],
    }


def from_document(document: Any, name: str = "topology") -> Topology:
    """The Topology of a JSON document; `name` begins what errors say.

    Raises:
        InputError: a key is missing, unknown or has the wrong form, or what Topology refuses; names the place.
    """
    fields = _object(document, name, _KEYS, ("nodes", "links"))
    version = fields.get("schema_version", SCHEMA_VERSION)
    if version != SCHEMA_VERSION:
        raise InputError(f"{name}: schema_version: got {version!r}, expected {SCHEMA_VERSION}")
    title = fields.get("name", name)
    if not isinstance(title, str):
        _refuse(f"{name}: name", title, "text")
    nodes = _groups(fields["nodes"], f"{name}: nodes")
    gamma = _number(fields.get("gamma_s_per_byte", 0), f"{name}: gamma_s_per_byte", 0.0)
    rows = fields["links"]
    if not isinstance(rows, list):
        _refuse(f"{name}: links", rows, "a list")
    links = tuple(_links(row, f"{name}: links[{number}]", nodes) for number, row in enumerate(rows))
    # Errors are to name the file, not the title.
    return replace(Topology(nodes, links, gamma, name), name=title)


def _link_document(links: LinkClass) -> dict[str, Any]:
    model = links.model
    rate = 1 / model.beta_s_per_byte if model.beta_s_per_byte else _FREE_BYTES_PER_S
    found: dict[str, Any] = {"class": links.kind, "alpha_s": model.alpha_s, "bytes_per_s": rate}
    if links.slowdown:
        found["bytes_per_s"] = [rate / factor for factor in links.slowdown]
    if links.kind != MESH:
        found["shared_by"] = [list(ranks) for ranks in links.shared_by]
    if model.pieces:
        found["pieces"] = [list(piece) for piece in model.pieces]
    if model.serial_messages:
        found["serial_messages"] = True
    return found


def _links(row: Any, place: str, nodes: tuple[Ranks, ...]) -> LinkClass:
    fields = _object(row, place, _LINK_KEYS, ("class", "alpha_s", "bytes_per_s"))
    kind = fields["class"]
    if not isinstance(kind, str) or kind not in KINDS:
        raise InputError(f"{place}.class: {one_of(kind, KINDS)}")
    shared_by = () if kind == MESH else _shared_by(fields, kind, place, nodes)
    given = fields["bytes_per_s"]
    rates = [_number(rate, f"{place}.bytes_per_s") for rate in (given if isinstance(given, list) else [given])]
    if isinstance(given, list) and len(rates) != len(shared_by):
        raise InputError(f"{place}.bytes_per_s: got {len(rates)} rates, expected one, or one for each link")
    serial = fields.get("serial_messages", False)
    if not isinstance(serial, bool):
        _refuse(f"{place}.serial_messages", serial, "true or false")
    fastest = max(rates)
    alpha = _number(fields["alpha_s"], f"{place}.alpha_s", 0.0)
    beta = 0.0 if fastest >= _FREE_BYTES_PER_S else 1 / fastest
    pieces = _pieces(fields.get("pieces", []), f"{place}.pieces")
    slowdown = tuple(fastest / rate for rate in rates) if len(set(rates)) > 1 else ()
    return LinkClass(kind, CostModel(alpha, beta, 0.0, pieces, serial), shared_by, slowdown)


def _shared_by(fields: dict[str, Any], kind: str, place: str, nodes: tuple[Ranks, ...]) -> tuple[Ranks, ...]:
    value = fields.get("shared_by", {INSIDE: "rank", NIC: "node"}.get(kind))
    if value == "node":
        return nodes
    if value == "rank":
        return tuple((rank,) for ranks in nodes for rank in ranks)
    if value is None:
        raise InputError(f"{place}.shared_by: got nothing, expected the ranks of each link of class {kind}")
    return _groups(value, f"{place}.shared_by", ', "rank" or "node"')


def _groups(value: Any, place: str, others: str = "") -> tuple[Ranks, ...]:
    if not isinstance(value, list) or not value:
        _refuse(place, value, f"a list of lists of ranks{others}")
    for number, ranks in enumerate(value):
        if not isinstance(ranks, list) or not all(type(rank) is int for rank in ranks):
            _refuse(f"{place}[{number}]", ranks, "a list of ranks")
    return tuple(tuple(sorted(ranks)) for ranks in value)


def _pieces(value: Any, place: str) -> tuple[Piece, ...]:
    if not isinstance(value, list):
        _refuse(place, value, "a list")
    found = []
    for number, piece in enumerate(value):
        if not isinstance(piece, list) or len(piece) != 3:
            _refuse(f"{place}[{number}]", piece, "[nbytes, alpha_s, beta_s_per_byte]")
        found.append(Piece(*(_number(entry, f"{place}[{number}]", 0.0) for entry in piece)))
    sizes = [piece.nbytes for piece in found]
    if sorted(set(sizes)) != sizes:
        raise InputError(f"{place}: got pieces from {sizes} bytes, expected ascending sizes")
    return tuple(found)


def _object(value: Any, place: str, known: tuple[str, ...], needed: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(value, dict):
        _refuse(place, value, "a JSON object")
    for key in value:
        if key not in known:
            raise InputError(f"{place}: got key {key!r}{did_you_mean(key, known)}, expected {', '.join(known)}")
    for key in needed:
        if key not in value:
            raise InputError(f"{place}: got no {key}, expected it")
    return value


def _number(value: Any, place: str, least: float | None = None) -> float:
    """`value` as a finite float: above 0, or at least `least`."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300
    if not is_number or not math.isfinite(value) or not (value > 0 if least is None else value >= least):
        _refuse(place, value, "a number above 0" if least is None else f"a number of {least:g} or more")
    return float(value)


def _refuse(place: str, value: object, expected: str) -> NoReturn:
    text = repr(value)
    raise InputError(f"{place}: got {text if len(text) <= 40 else text[:37] + '...'}, expected {expected}")
