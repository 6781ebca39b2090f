"""The directions of imports between and inside folders, and that the pure part touches neither MPI, UCX nor CUDA."""

import ast
import os
import re
import subprocess
import sys
from collections import defaultdict
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path, PurePosixPath

import pytest

import lanterne

PACKAGE = Path(lanterne.__file__).parent
# Each may import those to its right.
ORDER = ["torch", "bench", "failslow", "pipeline", "collectives", "transport", "kernels"]


def find_modules(package):
    """Return {dotted name: path below `package`} of all modules; a package has its own name."""
    modules = {}
    files = (Path(folder) / file for folder, _, names in os.walk(package, followlinks=True) for file in names)
    for path in (file for file in files if file.suffix == ".py"):
        parts = path.relative_to(package).with_suffix("").parts
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        modules[".".join(("lanterne", *parts))] = PurePosixPath(path.relative_to(package))
    return modules


@cache
def tree_of(path):
    return ast.parse(path.read_text())


def nodes_of(tree, types):
    """Yield all nodes of `tree`; without `types` none of what only type checkers read."""
    for node in ast.iter_child_nodes(tree):
        if types or not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            yield node
            yield from nodes_of(node, types)


def imports_of(path, package, modules, types):
    """The modules that the file at `path` below `package` imports, at any depth of its code; see `nodes_of`."""
    base = ["lanterne", *path.with_suffix("").parts][: None if path.name == "__init__.py" else -1]
    base = base[:-1] if path.name == "__init__.py" else base
    for node in nodes_of(tree_of(package / path), types):
        if isinstance(node, ast.ImportFrom):
            inside = base[: len(base) - node.level + 1] if node.level else []
            module = ".".join([*inside, *([node.module] if node.module else [])])
            for alias in node.names:
                yield modules.get(f"{module}.{alias.name}", modules.get(module))
        elif isinstance(node, ast.Import):
            for alias in node.names:
                yield modules.get(alias.name)


def find_arrows(package, types=True):
    """{(importing file, imported file)}; see `nodes_of`."""
    modules = find_modules(package)
    arrows = {(path, to) for path in modules.values() for to in imports_of(path, package, modules, types)}
    return {(path, to) for path, to in arrows if to not in (None, path)}


def arrows_inside(folder, arrows):
    """{unit: units that it imports} among the files and folders of `folder`; its own __init__ aside."""
    found = defaultdict(set)
    for ends in arrows:
        if all(path.is_relative_to(folder) for path in ends):
            first, second = (path.relative_to(folder).parts[0] for path in ends)
            if first != second and "__init__.py" not in (first, second):
                found[first].add(second)
    return found


FILES = find_modules(PACKAGE).values()
FOLDERS = sorted({folder for path in FILES for folder in path.parents})


@pytest.fixture(scope="module")
def arrows():
    return find_arrows(PACKAGE)


@pytest.fixture(scope="module")
def running_arrows():
    return find_arrows(PACKAGE, types=False)


def test_every_file_is_seen(arrows):
    assert {path.parts[0] for path in FILES} >= {*ORDER, "__init__.py", "errors.py"}
    assert len(arrows) > 1000


@pytest.mark.parametrize("folder", ORDER)
def test_imports_go_to_the_right_only(folder, arrows):
    allowed = {*ORDER[ORDER.index(folder) :], "errors.py", "__init__.py"}
    wrong = [f"{path} -> {to}" for path, to in arrows if path.parts[0] == folder and to.parts[0] not in allowed]
    assert not wrong


@pytest.mark.parametrize("folder", FOLDERS, ids=str)
def test_no_two_places_of_a_folder_need_each_other(folder, running_arrows):
    """The files and folders of `folder` stand in an order in which each imports, when run, only what follows it."""
    try:
        list(TopologicalSorter(arrows_inside(folder, running_arrows)).static_order())
    except CycleError as error:
        pytest.fail(f"{folder}: {' -> '.join(reversed(error.args[1]))}")


def test_the_package_does_not_need_the_evaluation():
    imports = re.compile(r"^\s*(from|import) evaluation\b|['\"]evaluation\.", re.MULTILINE)
    assert not [path for path in FILES if imports.search((PACKAGE / path).read_text())]


@pytest.mark.parametrize("folder", FOLDERS, ids=str)
def test_a_folder_says_what_is_in_it(folder):
    assert ast.get_docstring(ast.parse((PACKAGE / folder / "__init__.py").read_text()))


@pytest.mark.parametrize(
    "line", ["from ..transport import base", "from lanterne.transport.base import x", "import lanterne.transport.base"]
)
def test_the_walk_sees_every_kind_of_import(tmp_path, line):
    for name in ("transport/base.py", "kernels/x.py"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(f"def f():\n    {line if 'kernels' in name else 'pass'}\n")
    assert find_arrows(tmp_path) == {(PurePosixPath("kernels/x.py"), PurePosixPath("transport/base.py"))}


def test_the_walk_tells_what_only_type_checkers_read(tmp_path):
    for name, text in {
        "a.py": "if TYPE_CHECKING:\n    from lanterne.b import x\nfrom lanterne.c import y",
        "b.py": "",
        "c.py": "",
    }.items():
        (tmp_path / name).write_text(text)
    needed, typed = ((PurePosixPath("a.py"), PurePosixPath(name)) for name in ("c.py", "b.py"))
    assert find_arrows(tmp_path, types=False) == {needed}
    assert find_arrows(tmp_path) == {needed, typed}


def test_a_circle_inside_a_folder_is_seen():
    arrows = {("a/b.py", "a/c/d.py"), ("a/c/e.py", "a/b.py")}
    inside = arrows_inside(PurePosixPath("a"), {tuple(map(PurePosixPath, ends)) for ends in arrows})
    with pytest.raises(CycleError):
        list(TopologicalSorter(inside).static_order())


# Files that start processes which end otherwise than with the process that started them.
OWN_ENDS = {
    "bench/failslow/watch.py": "a daemon, where it is asked for",
    "bench/lab/network.py": "removes the network once we have ended",
    "pipeline/planners/loops.py": "compiles for those that come later",
    "transport/job/guard.py": "ties the rank itself",
    "transport/job/launch.py": "has start_child, which ties",
    "transport/rails/delegate_handle.py": "ends with its socket to us",
    "transport/store/process.py": "ends with its standard input",
}


def test_processes_end_with_the_one_that_started_them():
    starts = re.compile(r"subprocess\.Popen\(|os\.fork\(|ProcessPoolExecutor\((?!.*set_parent_death_signal)|\.Pool\(")
    found = {path.as_posix() for path in FILES if starts.search((PACKAGE / path).read_text())}
    assert found == set(OWN_ENDS)


def test_import_is_light(tmp_path):
    heavy = "numpy numba mpi4py ucxx cupy matplotlib ortools networkx".split()
    code = f"import sys, lanterne, lanterne.bench.cli; print([m for m in {heavy!r} if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert result.stdout.strip() == "[]"


@cache
def defined(path):
    """The names that the module at `path` defines at its top."""
    nodes = tree_of(PACKAGE / path).body
    targets = [target for node in nodes if isinstance(node, ast.Assign) for target in node.targets]
    names = {target.id for target in targets if isinstance(target, ast.Name)}
    names |= {node.target.id for node in nodes if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)}
    return names | {node.name for node in nodes if hasattr(node, "name")}


def is_there(name, folder):
    """Whether `name` is a place as seen from `folder` or one above, or a name of a place there."""
    parts = name.removeprefix("lanterne.").removesuffix(".py").replace("/", ".").strip(".").split(".")
    for above in (folder, *folder.parents):
        for count in range(len(parts), 0, -1):
            place = above.joinpath(*parts[:count])
            if (PACKAGE / place).is_dir() and count == len(parts):
                return True
            if (module := place.with_suffix(".py")) in ALL_FILES:
                return count == len(parts) or parts[count] in defined(module)
    top = folder.parts[0] if folder.parts else "."
    return (PACKAGE / folder / name).exists() or any(
        parts[0] in defined(path) for path in ALL_FILES if path.is_relative_to(top)
    )


ALL_FILES = set(FILES)


@pytest.mark.parametrize("folder", [folder for folder in FOLDERS if folder / "__init__.py" in ALL_FILES], ids=str)
def test_what_a_folder_says_it_holds_is_there(folder):
    told = ast.get_docstring(tree_of(PACKAGE / folder / "__init__.py")) or ""
    quoted = {*re.findall(r"`(\.?[A-Za-z_][\w./]*)`", told)} - {"lanterne"}
    for place, names in re.findall(r"`([\w.]+)` \(([\w, ]+)\)", told):
        # A list of names of a module, no words.
        if all(re.fullmatch(r"[A-Z]\w+|[a-z]+_\w+", name) for name in names.split(", ")):
            quoted |= {f"{place}.{name}" for name in names.split(", ")}
    assert not {name for name in quoted if not is_there(name, folder)}
