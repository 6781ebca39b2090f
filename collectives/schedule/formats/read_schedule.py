"""Schedules of files: our JSON (export_json.py) and MSCCL XML (import_msccl.py), told apart by how they begin."""

import json
from pathlib import Path

from lanterne.collectives.schedule.formats.export_json import from_json
from lanterne.collectives.schedule.formats.import_msccl import from_msccl_xml
from lanterne.collectives.schedule.ir import CollectiveSchedule
from lanterne.collectives.schedule.passes import relabelled
from lanterne.errors import InputError, ScheduleError

# A million transfers take some 25 MB.
MAX_FILE_NBYTES = 256 << 20


def read_schedule(path: str | Path) -> CollectiveSchedule:
    """The (unchecked) schedule of a file, with the ports and joins that its transfers have (passes.relabelled).

    Raises:
        InputError: it cannot be read.
        ScheduleError: it holds no schedule; names file and place.
    """
    try:
        with Path(path).open("rb") as file:
            data = file.read(MAX_FILE_NBYTES + 1)
    except OSError as error:
        raise InputError(f"schedule {path}: {error.strerror}") from None
    if len(data) > MAX_FILE_NBYTES:
        raise InputError(f"schedule {path}: got over {MAX_FILE_NBYTES} bytes, expected at most so many")
    try:
        text = data.decode()
        is_xml = text.lstrip("\ufeff \t\r\n").startswith("<")
        return relabelled(from_msccl_xml(text) if is_xml else from_json(json.loads(text)))
    except ScheduleError as error:
        raise ScheduleError(f"{path}: {error}") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"schedule {path}: got no JSON ({error})") from None
