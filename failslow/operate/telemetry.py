"""What a host tells of itself: pressure, clocks, heat, network interfaces and GPUs, as far as it can be read.

Loaded into watched programs: standard library only, and `pynvml` (the package nvidia-ml-py) where it is installed.
Whatever cannot be read is absent, and named once in `absent`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

RESOURCES = ("cpu", "memory", "io")
MAX_NICS, MAX_CORES = 32, 16
# Interfaces that carry nothing between hosts.
INNER_NICS = ("lo", "ifb", "docker", "br-", "virbr", "cni", "flannel", "cali", "dummy", "sit", "tunl")
# Counters of an InfiniBand or RoCE port that tell of trouble.
PORT_COUNTERS = (
    *("symbol_error", "link_downed", "link_error_recovery", "port_rcv_errors", "port_xmit_discards"),
    *("local_link_integrity_errors", "excessive_buffer_overrun_errors"),
)
HARDWARE_COUNTERS = ("out_of_sequence", "packet_seq_err", "local_ack_timeout_err", "rnr_nak_retry_err")
# Why a GPU's clocks are held down, by NVML's bits; idleness and what somebody has set are no trouble.
THROTTLES = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "heat (software)",
    0x40: "heat (hardware)",
    0x80: "power brake",
}
LOCAL_RANKS = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID")
NIC_VARIABLES = ("NCCL_IB_HCA", "NCCL_SOCKET_IFNAME", "UCX_NET_DEVICES", "GLOO_SOCKET_IFNAME")
# What is worth a word: the share of time that work waits, times it was before; a clock over that of before; heat.
PRESSURE, PRESSURE_TIMES, SLOW_CLOCK, HOT_CELSIUS = 0.10, 2.0, 0.9, 90


def open_nvml() -> tuple[Any, str]:
    """(The module pynvml, ready to be asked, "") or (None, why there is none)."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except ImportError:
        return None, "nvidia-ml-py is not installed"
    except Exception as error:
        return None, str(error)
    return pynvml, ""


class HostTelemetry:
    """Reads it.

    Args:
        root: of the file system; for tests.

    Cost: some 2 ms a `read` on a host with 8 interfaces, and what NVML takes, some 5 ms a GPU.
    """

    def __init__(self, root: str | Path = "/") -> None:
        self._root = Path(root)
        self._nvml, why = open_nvml()
        self._absent: list[str] = [f"GPUs: {why}"] if why else []

    def read(self) -> dict[str, Any]:
        """What can be read now: `pressure` (shares of 10 s), `cpu`, `celsius`, `nics`, `gpus`, `absent`."""
        readers: tuple[tuple[str, str, Callable[[], Any]], ...] = (
            ("pressure", "pressure: no /proc/pressure (Linux 4.20, psi=1)", self._pressure),
            ("cpu", "clocks of cores: no cpufreq", self._cpu),
            ("celsius", "temperatures: no thermal zone", self._celsius),
            ("nics", "network interfaces: none that leaves the host", self._nics),
            ("gpus", "" if self._nvml is None else "GPUs: none that NVML can be asked of", self._gpus),
        )
        found: dict[str, Any] = {}
        absent = list(self._absent)
        for name, words, read in readers:
            value = None
            # Also what NVML's bindings raise, which have classes of their own: nothing here may end the telemetry.
            with suppress(Exception):
                value = read()
            if value:
                found[name] = value
            elif words:
                absent.append(words)
        return found | {"absent": absent}

    def _text(self, path: str | Path) -> str:
        return (self._root / path).read_text(errors="replace").strip()

    def _number(self, path: str | Path) -> int | None:
        try:
            return int(self._text(path))
        except (OSError, ValueError):
            return None

    def _pressure(self) -> dict[str, float]:
        found = {}
        for name in RESOURCES:
            with suppress(OSError):
                # some avg10=1.53 avg60=...
                words = self._text(f"proc/pressure/{name}").split()
                found[name] = float(words[1].partition("=")[2]) / 100
        return found

    def _cpu(self) -> dict[str, Any]:
        cores = sorted(self._root.glob("sys/devices/system/cpu/cpu[0-9]*"))
        # Some tell of all: a host may have hundreds, and this runs beside somebody's program.
        cores = cores[:: -(-len(cores) // MAX_CORES)] if cores else []
        clocks = [khz for core in cores if (khz := self._number(core / "cpufreq" / "scaling_cur_freq")) is not None]
        counts = [n for core in cores if (n := self._number(core / "thermal_throttle" / "core_throttle_count"))]
        found: dict[str, Any] = {}
        if clocks:
            found["mhz"] = sorted(clocks)[len(clocks) // 2] // 1000
        if counts or any((core / "thermal_throttle").exists() for core in cores[:1]):
            found["throttled"] = sum(counts)
        return found

    def _celsius(self) -> float | None:
        zones = self._root.glob("sys/class/thermal/thermal_zone*/temp")
        # An asleep sensor says 0 or less.
        return max((t / 1000 for zone in zones if (t := self._number(zone)) and 0 < t < 200_000), default=None)

    def _nics(self) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        for path in sorted(self._root.glob("sys/class/net/*"))[:MAX_NICS]:
            if path.name.startswith(INNER_NICS) or not (path / "statistics").is_dir():
                continue
            counts = {name: self._number(path / "statistics" / name) for name in ("rx_bytes", "tx_bytes")}
            bad = (f"{way}_{what}" for way in ("rx", "tx") for what in ("errors", "dropped"))
            errors = sum(self._number(path / "statistics" / name) or 0 for name in bad)
            about: dict[str, Any] = {"errors": errors, "downs": self._number(path / "carrier_changes")}
            speed = self._number(path / "speed")
            if speed is not None and speed > 0:
                about["mbit_per_s"] = speed
            with suppress(OSError):
                about["state"] = self._text(path / "operstate")
            found[path.name] = {key: value for key, value in (counts | about).items() if value is not None}
        for path in sorted(self._root.glob("sys/class/infiniband/*/ports/*"))[:MAX_NICS]:
            names = [*(f"counters/{name}" for name in PORT_COUNTERS), *(f"hw_counters/{n}" for n in HARDWARE_COUNTERS)]
            counted = {Path(name).name: n for name in names if (n := self._number(path / name)) is not None}
            port: dict[str, Any] = {"errors": sum(counted.values()), "counters": counted}
            for name, key in (("port_xmit_data", "tx_bytes"), ("port_rcv_data", "rx_bytes")):
                # In words of 4 bytes.
                if (words := self._number(path / "counters" / name)) is not None:
                    port[key] = 4 * words
            with suppress(OSError, ValueError):
                port["mbit_per_s"] = round(1000 * float(self._text(path / "rate").split()[0]))
            with suppress(OSError):
                port["state"] = "up" if "ACTIVE" in self._text(path / "state") else "down"
            found[f"{path.parent.parent.name}:{path.name}"] = port
        return found

    def _gpus(self) -> list[dict[str, Any]]:
        nvml = self._nvml
        if nvml is None:
            return []
        found = []
        for index in range(nvml.nvmlDeviceGetCount()):
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
            except Exception:
                # One that has fallen off its bus; the others are there.
                continue
            gpu: dict[str, Any] = {"index": index}
            for key, ask in NVML_VALUES.items():
                # Some GPUs do not know all of it.
                with suppress(Exception):
                    value = ask(nvml, handle)
                    gpu[key] = value.decode(errors="replace") if isinstance(value, bytes) else value
            bits = gpu.pop("reasons", 0)
            gpu["reasons"] = [words for bit, words in THROTTLES.items() if bits & bit]
            gpu["throttled"] = bool(gpu["reasons"])
            found.append(gpu)
        return found


def _reasons(nvml: Any, handle: Any) -> int:
    ask = getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None)
    return int((ask or nvml.nvmlDeviceGetCurrentClocksThrottleReasons)(handle))


# key -> what asks NVML for it.
NVML_VALUES: Mapping[str, Callable[[Any, Any], Any]] = {
    "name": lambda nvml, handle: nvml.nvmlDeviceGetName(handle),
    "uuid": lambda nvml, handle: nvml.nvmlDeviceGetUUID(handle),
    "celsius": lambda nvml, handle: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
    "sm_mhz": lambda nvml, handle: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
    "max_sm_mhz": lambda nvml, handle: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM),
    "watts": lambda nvml, handle: nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
    "busy": lambda nvml, handle: nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100,
    "replays": lambda nvml, handle: nvml.nvmlDeviceGetPcieReplayCounter(handle),
    "ecc_errors": lambda nvml, handle: nvml.nvmlDeviceGetTotalEccErrors(
        handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
    ),
    "reasons": _reasons,
}


def changes(before: Mapping[str, Any] | None, now: Mapping[str, Any]) -> list[str]:
    """What of a host's telemetry speaks for trouble, in words; `before`: what it was in health, None if not known."""
    was = before or {}
    found = []
    for name, share in now.get("pressure", {}).items():
        usual = was.get("pressure", {}).get(name, 0.0)
        if share >= PRESSURE and share >= PRESSURE_TIMES * usual:
            than = f" ({usual:.0%} before)" if before else ""
            found.append(f"work waits for {name} in {share:.0%} of the time{than}")
    cpu, cpu_was = now.get("cpu", {}), was.get("cpu", {})
    if _is_slower(cpu, cpu_was, "mhz"):
        found.append(f"cores run at {cpu['mhz']} MHz ({cpu_was['mhz']} before)")
    found += _grown("the cores", cpu, cpu_was, {"throttled": "were throttled by heat"}) if cpu_was else []
    if now.get("celsius", 0) >= HOT_CELSIUS:
        found.append(f"it is {now['celsius']:.0f} degrees hot")
    for name, nic in now.get("nics", {}).items():
        nic_was = was.get("nics", {}).get(name)
        if nic_was is None:
            continue
        found += _grown(name, nic, nic_was, {"errors": "errors and drops", "downs": "changes of its carrier"})
        if nic.get("mbit_per_s", 0) < nic_was.get("mbit_per_s", 0):
            found.append(f"{name} runs at {nic.get('mbit_per_s', 0)} Mbit/s ({nic_was['mbit_per_s']} before)")
        if nic.get("state") != nic_was.get("state"):
            found.append(f"{name} is {nic.get('state')} ({nic_was.get('state')} before)")
    known = {gpu.get("uuid", gpu["index"]): gpu for gpu in was.get("gpus", ())}
    for gpu in now.get("gpus", ()):
        found += _gpu_changes(known.get(gpu.get("uuid", gpu["index"])), gpu)
    return found


def _gpu_changes(before: Mapping[str, Any] | None, now: Mapping[str, Any]) -> list[str]:
    name = f"GPU {now['index']} ({now.get('uuid', 'no UUID')})"
    found = []
    new = [why for why in now["reasons"] if why not in (before or {}).get("reasons", ())]
    if new:
        heat = f", {now['celsius']} degrees" if "celsius" in now else ""
        found.append(f"{name} is throttled: {', '.join(new)}; {now.get('sm_mhz', '?')} MHz{heat}")
    elif before and before.get("busy", 0) and _is_slower(now, before, "sm_mhz"):
        found.append(f"{name} runs at {now['sm_mhz']} MHz ({before['sm_mhz']} before)")
    if before:
        found += _grown(name, now, before, {"ecc_errors": "uncorrected errors of memory", "replays": "PCIe replays"})
    return found


def _is_slower(now: Mapping[str, Any], before: Mapping[str, Any], clock: str) -> bool:
    """Whether this clock is clearly below what it was; of one that was not read, then or now, nobody knows."""
    return clock in now and clock in before and bool(now[clock] < SLOW_CLOCK * before[clock])


def _grown(name: str, now: Mapping[str, Any], before: Mapping[str, Any], words: Mapping[str, str]) -> list[str]:
    grown = {what: now.get(key, 0) - before.get(key, 0) for key, what in words.items()}
    return [f"{name}: {count} more {what}" for what, count in grown.items() if count > 0]


def rank_gpu(environment: Mapping[str, str]) -> str | None:
    """The GPU of a rank with this environment, as CUDA_VISIBLE_DEVICES names it or by its number; None without one."""
    local = next((environment[name] for name in LOCAL_RANKS if environment.get(name, "").isdigit()), None)
    own = environment.get("LANTERNE_DEVICE", local or "")
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        names = [name.strip() for name in visible.split(",") if name.strip()]
        return names[int(own) % len(names)] if names and own.isdigit() else names[0] if len(names) == 1 else None
    return own if own.isdigit() and os.path.exists("/dev/nvidiactl") else None


def rank_nic(environment: Mapping[str, str], routes: str | Path = "/proc/net/route") -> str | None:
    """The interface that a rank's messages leave by: as its environment says, else that of the default route."""
    for name in NIC_VARIABLES:
        if environment.get(name):
            return environment[name][:64]
    try:
        lines: Sequence[str] = Path(routes).read_text().splitlines()
    except OSError:
        return None
    rows = [line.split() for line in lines[1:]]
    return next((row[0] for row in rows if len(row) > 1 and row[1] == "00000000"), None)
