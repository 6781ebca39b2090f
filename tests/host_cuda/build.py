"""Builds the stand-ins of CUDA's libraries into the running environment, unless they are there: see README.md.

CuPy's wheel loads CUDA's libraries by name, but for one module, which has the CUDA runtime inside: that module is made
again from CuPy's source distribution.
"""

import fcntl
import hashlib
import os
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
TARGET = Path(sys.prefix) / "host-cuda"
PACKAGES = Path(sysconfig.get_paths()["purelib"])
HEADERS = PACKAGES / "nvidia/cu13/include"
SOURCE = HERE / "cupy-source.txt"
MODULE = "cupy_backends/cuda/api/runtime"
CUDA_VERSION = 13020
COMPILER = os.environ.get("CXX", "g++")
# What CuPy's own build tells Cython, for CUDA on Linux.
SETTINGS = {"CUPY_CUDA_VERSION": CUDA_VERSION, "CUPY_HIP_VERSION": 0, "use_hip": False, "CUPY_USE_CUDA_PYTHON": False}
SETTINGS |= {"CUPY_CUFFT_STATIC": False, "CUPY_DISTUTILS": False}


def sources():
    """The files that what is built depends on."""
    lock = HERE.parent.parent / "locks/host-cuda.txt"
    ours = (path for path in HERE.rglob("*") if path.is_file() and path.suffix not in {".md", ".pyc"})
    users = {"run", "checks.py", "cupy_comm.py", "left_out.py"}
    return [lock, *sorted(path for path in ours if path.name not in users)]


def checksum():
    digest = hashlib.sha256()
    for path in sources():
        digest.update(path.read_bytes())
    return digest.hexdigest()


def run(*command, **environment):
    """Run a program; what it prints is shown only if it fails."""
    done = subprocess.run(
        [*map(str, command)], env=os.environ | environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"host_cuda: {command[0]} fails:\n{done.stdout}{done.stderr}")
    return done.stdout


def fetch_source():
    """CuPy's cupy_backends folder, of the source distribution with the pinned hash."""
    # Only then is CuPy's own build content without CUDA; it is asked for no more than its metadata.
    options = "--no-deps", "--no-binary", "cupy", "--no-build-isolation", "--require-hashes", "--dest", TARGET
    run(sys.executable, "-m", "pip", "download", "-q", *options, "-r", SOURCE, CUPY_INSTALL_USE_STUB="1")
    (archive,) = TARGET.glob("cupy-*.tar.gz")
    with tarfile.open(archive) as files:
        members = [member for member in files if member.name.split("/")[1:2] == ["cupy_backends"]]
        files.extractall(TARGET, members, filter="data")
    return TARGET / archive.name.removesuffix(".tar.gz")


def compile_module(source):
    """The object file of the module that is made again."""
    generated = TARGET / "runtime.cpp"
    settings = ",".join(f"{name}={value}" for name, value in SETTINGS.items())
    options = "-3", "--cplus", "-X", "embedsignature=True", "-X", "annotation_typing=False", "-E", settings
    run(sys.executable, "-m", "cython", *options, "-I", source, source / f"{MODULE}.pyx", "-o", generated)
    made = TARGET / "runtime.o"
    backends = source / "cupy_backends"
    folders = sysconfig.get_paths()["include"], HERE / "headers", HEADERS, backends, (source / MODULE).parent
    includes = [f"-I{folder}" for folder in (*folders, PACKAGES / "cupy/_core/include")]
    settings = "-O1", "-w", "-fPIC", f"-DCUPY_CUDA_VERSION={CUDA_VERSION}"
    run(COMPILER, *settings, *includes, "-c", generated, "-o", made)
    return made


def write_symbols(path, prefix, *nm):
    """The names beginning with `prefix` that an object or module needs from elsewhere."""
    lines = (line.split()[-1].partition("@")[0] for line in run("nm", "--undefined-only", *nm).splitlines())
    path.write_text("".join(f"{name}\n" for name in sorted(lines) if name.startswith(prefix)))


def build():
    made = compile_module(fetch_source())
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    write_symbols(TARGET / "runtime_symbols.txt", "cuda", made)
    for library in ("nccl", "cublas"):
        linking = PACKAGES / f"cupy_backends/cuda/libs/{library}{suffix}"
        write_symbols(TARGET / f"{library}_symbols.txt", library, "-D", linking)
    run("make", "-s", "-j2", "-C", HERE, f"LIB={TARGET}", f"CUDA_INCLUDE={HEADERS}")
    module = TARGET / "runtime.so"
    library = f"-L{TARGET}", "-l:libcudart.so.13", f"-Wl,-rpath,{TARGET}"
    run(COMPILER, "-shared", made, "-o", module, *library)
    # A new file, not new contents: the installed one may be shared with a cache of packages.
    module.replace(PACKAGES / f"{MODULE}{suffix}")


def main():
    TARGET.mkdir(exist_ok=True)
    stamp = TARGET / "stamp"
    with open(TARGET / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        wanted = checksum()
        if stamp.exists() and stamp.read_text() == wanted:
            return
        print("host_cuda: building CUDA's stand-ins, minutes on the first use", file=sys.stderr)
        build()
        stamp.write_text(wanted)


if __name__ == "__main__":
    main()
