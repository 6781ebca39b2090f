"""Let a CUDA build of PyTorch run its CPU half without CUDA: `VENV/bin/python tests/torch/cuda_stubs.py`.

A CUDA build does not load without some 3 GB of NVIDIA's libraries, and PyPI has no other build. This writes empty
libraries with their names beside torch's own; they export what torch binds, and every function of theirs returns an
error. The CUDA runtime and CUPTI have to be real (20 MB), since torch asks them whether there is a device. Needs a C
compiler and readelf. A build without CUDA is left as it is.
"""

import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from importlib.util import find_spec
from pathlib import Path

REAL = re.compile(r"lib(cudart|cupti|cuda)\.")
OF_CUDA = re.compile(r"lib(cu|nv|nccl)")
# A symbol without a version may be found in any library, so all of them go into one.
UNVERSIONED = re.compile(r"p?(cu|nv|nccl)\w+")


def readelf(option, library):
    return subprocess.run(["readelf", option, "-W", library], capture_output=True, text=True, check=True).stdout


def needs_of(libraries):
    """Return ({name of a CUDA library: {version: symbols}}, symbols without a version) that `libraries` bind."""
    versions, unversioned = {}, set()
    for library in libraries:
        for name in re.findall(r"\(NEEDED\).*\[(.*)\]", readelf("-d", library)):
            if OF_CUDA.match(name) and not REAL.match(name):
                versions.setdefault(name, defaultdict(set))
        owner, source = {}, None
        for line in readelf("-V", library).splitlines():
            if found := re.search(r"File: (\S+)", line):
                source = found[1]
            elif found := re.search(r"Name: (\S+) .*Flags", line):
                owner[found[1]] = source
        for line in readelf("--dyn-syms", library).splitlines():
            found = re.search(r" UND (\w+)(?:@(\S+))?", line)
            if found is None:
                continue
            symbol, version = found.groups()
            if version is None and UNVERSIONED.fullmatch(symbol):
                unversioned.add(symbol)
            elif owner.get(version) in versions:
                versions[owner[version]][version].add(symbol)
    return versions, unversioned


def write_stub(path, versions, unversioned):
    """Write the shared library `path` with one failing function for each symbol."""
    symbols = unversioned.union(*versions.values())
    with tempfile.TemporaryDirectory() as folder:
        source, script = Path(folder, "stub.c"), Path(folder, "stub.map")
        source.write_text("int lanterne_stub;\n" + "".join(f"int {each}(void) {{ return 1; }}\n" for each in symbols))
        script.write_text("".join(f"{name} {{ global: {'; '.join(each)}; }};\n" for name, each in versions.items()))
        options = ["-w", "-shared", "-fPIC", f"-Wl,-soname,{path.name}"]
        options += [f"-Wl,--version-script={script}"] if versions else []
        subprocess.run(["cc", *options, "-o", path, source], check=True)


def main():
    torch = find_spec("torch")
    if torch is None:
        sys.exit("cuda_stubs: got no torch in this Python, expected one")
    folder = Path(torch.origin).parent / "lib"
    versions, unversioned = needs_of(sorted(folder.glob("lib*.so*")))
    for name in sorted(versions):
        write_stub(folder / name, versions[name], unversioned)
        # The first library has them all.
        unversioned = set()
    print(f"{len(versions)} stubs in {folder}")


if __name__ == "__main__":
    main()
