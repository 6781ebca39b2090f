"""A driver, an NCCL and a binding that do not go together: one line with the three versions, and what fits."""

import sys
from types import SimpleNamespace

import pytest

from lanterne.errors import InputError, Unavailable
from lanterne.transport.nccl import binding, versions
from lanterne.transport.nccl.binding import checked, load_nccl
from lanterne.transport.nccl.nccl4py import Nccl4py, versions_of
from lanterne.transport.nccl.versions import Versions, check_together, misfit, version_text, with_cupy

FITTING = Versions(13000, 23007, 13, "CuPy 14.2.0", 13)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({}, ""),
        ({"driver": 12040}, "binding for CUDA 12: lanterne[cuda12], or a driver from 580 on"),
        ({"driver": 12040, "binding_cuda": 12}, "NCCL for CUDA 12: lanterne[cuda12], or a driver from 580 on"),
        ({"driver": 12040, "binding_cuda": None, "nccl_cuda": None}, ""),
        ({"binding_cuda": 12}, "one CUDA for both: lanterne[cuda12] alone"),
        ({"nccl": 2604}, "NCCL 2.7.0 or newer: pip install"),
        ({"header": 23203}, "NCCL 2.32.3 or newer, which that binding is made for"),
        ({"header": 23000}, ""),
        ({"driver": None, "nccl_cuda": None}, ""),
    ],
)
def test_what_fits(change, says):
    found = FITTING._replace(**change)
    assert misfit(found).startswith(says) and bool(misfit(found)) == bool(says)


def test_one_line_names_the_three():
    with pytest.raises(Unavailable) as caught:
        check_together(FITTING._replace(driver=12040))
    text = str(caught.value)
    assert text.startswith(
        "NCCL: got driver CUDA 12.4, NCCL 2.30.7 for CUDA 13, binding CuPy 14.2.0 for CUDA 13, expected binding for "
    )
    assert "\n" not in text
    with pytest.raises(Unavailable, match=r"no libnccl.so.2 was found; got driver unknown, NCCL none, binding CuPy"):
        checked(None, Versions())
    assert [version_text(version) for version in (2708, 21805, 23203)] == ["2.7.8", "2.18.5", "2.32.3"]


def cupy_with(driver, nccl=None):
    def driver_version():
        if driver is None:
            raise RuntimeError("cudaErrorInsufficientDriver")
        return driver

    return SimpleNamespace(
        __version__="14.2.0", cuda=SimpleNamespace(runtime=SimpleNamespace(driverGetVersion=driver_version), nccl=nccl)
    )


def test_what_is_installed_is_asked_once_for_each(monkeypatch):
    installed = {"nvidia-nccl-cu12", "cupy-cuda13x"}
    monkeypatch.setattr(versions, "_is_installed", installed.__contains__)
    assert with_cupy(cupy_with(13000), 23007) == Versions(13000, 23007, 12, "CuPy 14.2.0", 13)
    # Which of two is loaded is not known.
    installed.add("nvidia-nccl-cu13")
    assert with_cupy(cupy_with(None), None) == Versions(None, None, None, "CuPy 14.2.0", 13)


@pytest.mark.parametrize("name", ["cupy", "nccl4py", "mpi"])
def test_the_binding_is_chosen_by_name(monkeypatch, name):
    monkeypatch.setenv("LANTERNE_NCCL", name)
    nccl = SimpleNamespace(available=True, get_version=lambda: 2604)
    library = Nccl4py(SimpleNamespace(), nccl)
    monkeypatch.setattr(binding, "require_device", lambda: 1)
    monkeypatch.setattr(binding, "import_cupy", lambda: cupy_with(13000))
    monkeypatch.setattr(binding, "load_nccl4py", lambda: library)
    if name == "mpi":
        with pytest.raises(InputError, match="LANTERNE_NCCL: got 'mpi', expected one of cupy, nccl4py"):
            load_nccl()
        return
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "cupy.cuda", SimpleNamespace(nccl=nccl))
    named = "CuPy" if name == "cupy" else name
    with pytest.raises(Unavailable, match=rf"got driver CUDA 13.0, NCCL 2.6.4.*, binding {named}"):
        load_nccl()


def test_versions_of_nccl4py():
    version = SimpleNamespace(major=2, minor=32, micro=3)
    loaded = SimpleNamespace(cuda_variant=SimpleNamespace(major=13))
    found = SimpleNamespace(nccl4py="0.6.0", nccl_bindings=version, libnccl=loaded)
    library = Nccl4py(SimpleNamespace(get_version=lambda: found), SimpleNamespace(get_version=lambda: 23007))
    assert versions_of(library, 13000) == Versions(13000, 23007, 13, "nccl4py 0.6.0", None, 23203)
    assert "NCCL 2.32.3 or newer" in misfit(versions_of(library, 13000))

    def refuse():
        raise OSError("no libnccl.so.2")

    library = Nccl4py(SimpleNamespace(get_version=refuse), SimpleNamespace(get_version=refuse))
    assert versions_of(library, None) == Versions(None, None, None, "nccl4py")
