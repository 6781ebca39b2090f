"""What hosts tell: files of a made-up machine, a stand-in for NVML, and what of it speaks for trouble."""

import sys
from types import SimpleNamespace

import pytest

from lanterne.failslow.operate.telemetry import HostTelemetry, changes, rank_gpu, rank_nic

NET = "sys/class/net/eth0"
PORT = "sys/class/infiniband/mlx5_0/ports/1"
FILES = {
    "proc/pressure/cpu": "some avg10=12.50 avg60=1.00 avg300=0.10 total=1\nfull avg10=0.00 avg60=0.00 total=0",
    "proc/pressure/io": "some avg10=0.00 avg60=0.00 avg300=0.00 total=1",
    "sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq": "2400000",
    "sys/devices/system/cpu/cpu1/cpufreq/scaling_cur_freq": "2500000",
    "sys/devices/system/cpu/cpu1/thermal_throttle/core_throttle_count": "4",
    "sys/class/thermal/thermal_zone0/temp": "71000",
    "sys/class/thermal/thermal_zone1/temp": "-263200",
    **{f"{NET}/statistics/{name}": "5" for name in ("rx_bytes", "tx_bytes", "rx_errors", "tx_dropped")},
    f"{NET}/speed": "100000",
    f"{NET}/operstate": "up",
    f"{NET}/carrier_changes": "2",
    "sys/class/net/lo/statistics/rx_bytes": "1",
    f"{PORT}/counters/symbol_error": "3",
    f"{PORT}/counters/port_rcv_data": "100",
    f"{PORT}/hw_counters/out_of_sequence": "4",
    f"{PORT}/rate": "200 Gb/sec (4X HDR)",
    f"{PORT}/state": "4: ACTIVE",
}


@pytest.fixture
def machine(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    return tmp_path


def test_what_a_machine_tells(machine):
    assert HostTelemetry(machine).read() == {
        "pressure": {"cpu": 0.125, "io": 0.0},
        "cpu": {"mhz": 2500, "throttled": 4},
        "celsius": 71.0,
        "nics": {
            "eth0": {"rx_bytes": 5, "tx_bytes": 5, "errors": 10, "downs": 2, "mbit_per_s": 100_000, "state": "up"},
            "mlx5_0:1": {
                "errors": 7,
                "counters": {"symbol_error": 3, "out_of_sequence": 4},
                "rx_bytes": 400,
                "mbit_per_s": 200_000,
                "state": "up",
            },
        },
        "absent": ["GPUs: nvidia-ml-py is not installed"],
    }


def test_what_is_absent_is_named_once(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    told = HostTelemetry(tmp_path).read()
    assert list(told) == ["absent"]
    assert [text.split(":")[0] for text in told["absent"]] == [
        *("GPUs", "pressure", "clocks of cores", "temperatures", "network interfaces"),
    ]


def test_this_machine(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    told = HostTelemetry().read()
    # Of what is as it was only pressure and heat are told, which are judged by themselves too.
    unlike = {name: value for name, value in told.items() if name not in ("pressure", "celsius")}
    assert changes(unlike, unlike) == []
    assert set(told) <= {"pressure", "cpu", "celsius", "nics", "gpus", "absent"}


def nvml(**values):
    """A stand-in for pynvml with one GPU; `values` override what its functions give."""

    class NVMLError(Exception):
        pass

    def unknown(*args):
        raise NVMLError("Not Supported")

    known = {
        "nvmlInit": None,
        "nvmlDeviceGetCount": 1,
        "nvmlDeviceGetHandleByIndex": "handle",
        "nvmlDeviceGetName": b"H100",
        "nvmlDeviceGetUUID": "GPU-1",
        "nvmlDeviceGetTemperature": 60,
        "nvmlDeviceGetClockInfo": 1980,
        "nvmlDeviceGetMaxClockInfo": 1980,
        "nvmlDeviceGetPowerUsage": 350_000,
        "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=97),
        "nvmlDeviceGetTotalEccErrors": 0,
        "nvmlDeviceGetCurrentClocksEventReasons": 0,
        **values,
    }
    functions = {name: (lambda *args, value=value: value) for name, value in known.items()}
    constants = ("NVML_TEMPERATURE_GPU", "NVML_CLOCK_SM", "NVML_MEMORY_ERROR_TYPE_UNCORRECTED", "NVML_VOLATILE_ECC")
    return SimpleNamespace(**functions, nvmlDeviceGetPcieReplayCounter=unknown, **dict.fromkeys(constants, 1))


def gpus(monkeypatch, tmp_path, **values):
    monkeypatch.setitem(sys.modules, "pynvml", nvml(**values))
    return HostTelemetry(tmp_path).read()


def test_gpus_by_nvml(tmp_path, monkeypatch):
    well = gpus(monkeypatch, tmp_path)
    (gpu,) = well["gpus"]
    assert "replays" not in gpu and gpu["name"] == "H100" and gpu["watts"] == 350.0 and not gpu["throttled"]
    assert not any(text.startswith("GPUs") for text in well["absent"])
    hot = gpus(
        monkeypatch, tmp_path, nvmlDeviceGetCurrentClocksEventReasons=0x41, nvmlDeviceGetClockInfo=990,
        nvmlDeviceGetTemperature=92, nvmlDeviceGetTotalEccErrors=2,
    )  # fmt: skip
    # Idle by itself is no reason; heat is.
    assert hot["gpus"][0]["reasons"] == ["heat (hardware)"]
    assert changes(well, hot) == [
        "GPU 0 (GPU-1) is throttled: heat (hardware); 990 MHz, 92 degrees",
        "GPU 0 (GPU-1): 2 more uncorrected errors of memory",
    ]
    slow = gpus(monkeypatch, tmp_path, nvmlDeviceGetClockInfo=1400)
    assert changes(well, slow) == ["GPU 0 (GPU-1) runs at 1400 MHz (1980 before)"]
    assert changes(hot, well) == [] and changes(None, well) == []


def test_a_gpu_that_fails_ends_neither_the_others_nor_the_rest(machine, monkeypatch):
    def fail(*args):
        raise RuntimeError("GPU is lost")

    driver = nvml(nvmlDeviceGetCount=2)
    driver.nvmlDeviceGetHandleByIndex = lambda index: fail() if index == 0 else "handle"
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    telemetry = HostTelemetry(machine)
    assert [gpu["index"] for gpu in telemetry.read()["gpus"]] == [1]
    driver.nvmlDeviceGetCount = fail
    told = telemetry.read()
    assert "gpus" not in told and told["celsius"] == 71.0
    assert told["absent"] == ["GPUs: none that NVML can be asked of"]


def test_a_clock_that_cannot_be_read_any_more_is_no_slow_one(tmp_path, monkeypatch):
    well = gpus(monkeypatch, tmp_path)
    unread = {key: value for key, value in well["gpus"][0].items() if key != "sm_mhz"}
    assert changes(well, well | {"gpus": [unread]}) == []


def test_a_driver_that_fails(tmp_path, monkeypatch):
    def fail():
        raise RuntimeError("Driver Not Loaded")

    monkeypatch.setitem(sys.modules, "pynvml", SimpleNamespace(nvmlInit=fail))
    assert "GPUs: Driver Not Loaded" in HostTelemetry(tmp_path).read()["absent"]


WELL = {
    "pressure": {"cpu": 0.02},
    "cpu": {"mhz": 3000, "throttled": 1},
    "celsius": 60.0,
    "nics": {"eth0": {"errors": 5, "downs": 1, "mbit_per_s": 100_000, "state": "up"}},
}


@pytest.mark.parametrize(
    ("now", "words"),
    [
        ({}, []),
        ({"pressure": {"cpu": 0.43}}, ["work waits for cpu in 43% of the time (2% before)"]),
        ({"pressure": {"cpu": 0.09}}, []),
        ({"cpu": {"mhz": 1800, "throttled": 1}}, ["cores run at 1800 MHz (3000 before)"]),
        ({"cpu": {"throttled": 1}}, []),
        ({"cpu": {"mhz": 3000, "throttled": 9}}, ["the cores: 8 more were throttled by heat"]),
        ({"celsius": 97.0}, ["it is 97 degrees hot"]),
        ({"nics": {"eth0": WELL["nics"]["eth0"] | {"errors": 12}}}, ["eth0: 7 more errors and drops"]),
        ({"nics": {"eth0": WELL["nics"]["eth0"] | {"downs": 3}}}, ["eth0: 2 more changes of its carrier"]),
        (
            {"nics": {"eth0": WELL["nics"]["eth0"] | {"mbit_per_s": 10_000}}},
            ["eth0 runs at 10000 Mbit/s (100000 before)"],
        ),
        ({"nics": {"eth0": WELL["nics"]["eth0"] | {"state": "down"}}}, ["eth0 is down (up before)"]),
        # A counter that began anew, and an interface that came: no trouble.
        ({"nics": {"eth0": WELL["nics"]["eth0"] | {"errors": 0}, "eth1": {"errors": 9}}}, []),
    ],
)
def test_what_speaks_for_trouble(now, words):
    assert changes(WELL, WELL | now) == words
    # What was always so is no news, but pressure and heat are without anything to compare with.
    alone = [text.partition(" (")[0] for text in changes(None, WELL | now)]
    assert alone == [text.partition(" (")[0] for text in words if "work waits" in text or "hot" in text]


@pytest.mark.parametrize(
    ("environment", "gpu"),
    [
        ({}, None),
        ({"CUDA_VISIBLE_DEVICES": "3"}, "3"),
        ({"CUDA_VISIBLE_DEVICES": "3,5", "LOCAL_RANK": "1"}, "5"),
        ({"CUDA_VISIBLE_DEVICES": "3,5", "LOCAL_RANK": "1", "LANTERNE_DEVICE": "0"}, "3"),
        ({"CUDA_VISIBLE_DEVICES": "GPU-7, GPU-8", "SLURM_LOCALID": "0"}, "GPU-7"),
        ({"CUDA_VISIBLE_DEVICES": "3,5"}, None),
        ({"CUDA_VISIBLE_DEVICES": ""}, None),
    ],
)
def test_the_gpu_of_a_rank(environment, gpu):
    assert rank_gpu(environment) == gpu


def test_the_interface_of_a_rank(tmp_path):
    routes = tmp_path / "route"
    routes.write_text("Iface\tDestination\tGateway\neth1\t0000FEA9\t0\neth0\t00000000\t0102000A\n")
    assert rank_nic({}, routes) == "eth0" and rank_nic({}, tmp_path / "none") is None
    assert rank_nic({"NCCL_SOCKET_IFNAME": "ib0"}, routes) == "ib0"
