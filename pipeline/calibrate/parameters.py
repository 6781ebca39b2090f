"""What a message costs on each kind of GPU, as found from runs, and what those runs had."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from lanterne.errors import InputError
from lanterne.pipeline.calibrate.runs import RecordedRun
from lanterne.pipeline.plan.fields import as_number, as_numbers, as_signed, check_keys
from lanterne.pipeline.simulate.devices import Devices

FORMAT = "lanterne-calibration-2"
# Beside what was seen, a share of the largest that is not called beyond it.
ROOM = 0.02


class GpuParameters(NamedTuple):
    """Parameters of one kind of GPU; see UNITS.

    Attributes:
        spin: how long a kernel that holds a send back lasts, over what it was asked for.
        hold_ms_per_mbyte: for how long a delegate holds a message of a megabyte (1e6 bytes) beyond the link's delay.
        hold_per_sender_ms: how much longer for each delegate, of one direction, of the other ranks of its host.
        message_cost_ms: what the computing process pays for each message that it hands over or takes.
        message_cost_per_rank_ms: what it pays more for each other rank of its host.
        instant_issue: 1 where hosts of tensor-parallel ranks issue as if messages took no time (issue_order), 0 where
            they issue as recorded.
        gap_ms: between two actions, the median over the runs; used where no healthy iteration is known.
    """

    spin: float = 1.0
    hold_ms_per_mbyte: float = 0.0
    hold_per_sender_ms: float = 0.0
    message_cost_ms: float = 0.0
    message_cost_per_rank_ms: float = 0.0
    instant_issue: float = 0.0
    gap_ms: float = 0.0

    def hold_ms(self, message_nbytes: float, ranks_per_host: int, delegates: int) -> float:
        """For how long a delegate holds a message beyond the link's delay."""
        others = (ranks_per_host - 1) * delegates
        return self.hold_ms_per_mbyte * message_nbytes / 1e6 + self.hold_per_sender_ms * others

    def cost_ms(self, ranks_per_host: int) -> float:
        """What the computing process pays for a message that goes over delegates."""
        return self.message_cost_ms + self.message_cost_per_rank_ms * (ranks_per_host - 1)


UNITS = {
    "spin": "1",
    "hold_ms_per_mbyte": "ms/MB",
    "hold_per_sender_ms": "ms",
    "message_cost_ms": "ms",
    "message_cost_per_rank_ms": "ms",
    "instant_issue": "1",
    "gap_ms": "ms",
}
# What a run has that it can lie beyond the runs of a calibration in.
SEEN: dict[str, Callable[[RecordedRun], Sequence[float]]] = {
    "ranks_per_host": lambda run: [run.ranks_per_host],
    "message_bytes": lambda run: [run.message_nbytes],
    "stages": lambda run: [run.quiet.stages],
    "delegates": lambda run: [run.delegates] if run.delegates else [],
    "delay_ms": lambda run: run.delays_ms,
}


@dataclass(frozen=True)
class GpuCalibration:
    """The GpuParameters found from `runs` runs, and (least, most) of each of SEEN in them."""

    parameters: GpuParameters
    runs: int
    seen: Mapping[str, tuple[float, float]]

    def beyond(self, values: Mapping[str, Iterable[float]]) -> list[str]:
        """A line for each of `values`, by the names of SEEN, that lies beyond what was seen."""
        found = []
        for key, given in values.items():
            least, most = self.seen.get(key, (0.0, 0.0))
            for value in sorted(set(given)):
                # Less delay, or fewer stages, is not beyond: no delay was seen too.
                if value > most * (1 + ROOM) or (key == "message_bytes" and value < least * (1 - ROOM)):
                    found.append(f"{key}: got {value:g}, seen {least:g} to {most:g}")
        return found


@dataclass(frozen=True)
class DeviceCalibration:
    """A GpuCalibration for each kind of GPU, at least one."""

    gpus: Mapping[str, GpuCalibration]

    def find(self, run: RecordedRun) -> tuple[GpuParameters, list[str]]:
        """(parameters to predict `run` with, a line for each way in which it lies beyond what was seen)."""
        beyond = []
        name = run.gpu
        if name not in self.gpus:
            name = max(self.gpus, key=lambda gpu: self.gpus[gpu].runs)
            beyond.append(f"gpu: got {run.gpu or 'none'}, seen {', '.join(self.gpus)}: predicted as {name}")
        found = self.gpus[name]
        return found.parameters, beyond + found.beyond({key: values(run) for key, values in SEEN.items()})

    def to_dict(self) -> dict[str, Any]:
        """A JSON object that `from_dict` turns into an equal one."""
        gpus = {}
        for name, found in self.gpus.items():
            values = {key: {"value": value, "unit": UNITS[key]} for key, value in found.parameters._asdict().items()}
            gpus[name] = {"runs": found.runs, "seen": {k: list(v) for k, v in found.seen.items()}, "parameters": values}
        return {"format": FORMAT, "gpus": gpus}

    @classmethod
    def from_dict(cls, document: Any) -> "DeviceCalibration":
        """The DeviceCalibration of a file.

        Raises:
            InputError: a value is missing or cannot be.
        """
        check_keys("calibration", document, ("format", "gpus"), ("format", "gpus"))
        if document["format"] != FORMAT:
            raise InputError(f"calibration: got format {document['format']!r:.40}, expected {FORMAT!r}")
        if not isinstance(document["gpus"], dict) or not document["gpus"]:
            raise InputError("gpus: got none, expected an object with at least one kind of GPU")
        return cls({name: _gpu(f"gpus.{name}", values) for name, values in document["gpus"].items()})


def _gpu(where: str, document: Any) -> GpuCalibration:
    check_keys(where, document, ("runs", "seen", "parameters"), ("runs", "seen", "parameters"))
    given, seen = document["parameters"], document["seen"]
    check_keys(f"{where}.parameters", given, GpuParameters._fields, GpuParameters._fields)
    check_keys(f"{where}.seen", seen, tuple(SEEN), tuple(SEEN))
    values = []
    for key in GpuParameters._fields:
        check_keys(f"{where}.parameters.{key}", given[key], ("value",), ("value",))
        read = as_signed if key == "gap_ms" else as_number
        values.append(read(f"{where}.parameters.{key}.value", given[key]["value"]))
    ranges = {}
    for key in SEEN:
        least, most = as_numbers(f"{where}.seen.{key}", seen[key], 2, as_number)
        ranges[key] = least, most
    return GpuCalibration(GpuParameters(*values), int(as_number(f"{where}.runs", document["runs"])), ranges)


def devices_of(run: RecordedRun, parameters: GpuParameters, *, healthy: bool = False) -> Devices:
    """The Devices on which `run` runs, or, `healthy`, ran before links got slow: over NCCL in any case."""
    if run.policy == "1f1b":
        return Devices(blocking_groups=True)
    if healthy or not run.delegates:
        return Devices(hardware_queues=1, streams_per_pair=1)
    hold = parameters.hold_ms(run.message_nbytes, run.ranks_per_host, run.delegates)
    return Devices(delegates=run.delegates, hold=hold, message_cost=parameters.cost_ms(run.ranks_per_host))
