"""Every file and every name on the page "architecture" exists, in the file that the page names beside it."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "architecture.md").read_text()
PROSE = re.sub(r"```.*?```", "", PAGE, flags=re.S)
FILES = sorted(set(re.findall(r"`((?:collectives|transport|kernels|pipeline|failslow)/[\w/]+\.py)`", PROSE)))
NAMES = sorted(set(re.findall(r"`([A-Z]\w+(?:\.\w+)?|[a-z]\w+)`", PROSE)) - {"init", "late_join"})


def defined():
    """Return the names of functions and classes of the package, methods as Class.method."""
    found = set()
    for top in ("collectives", "transport", "kernels", "pipeline", "lanterne"):
        for path in (ROOT / top).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef):
                    found |= {f"{node.name}.{each.name}" for each in node.body if hasattr(each, "name")}
                if hasattr(node, "name"):
                    found.add(node.name)
    return found


@pytest.mark.parametrize("name", FILES)
def test_files_exist(name):
    assert (ROOT / name).exists()


def test_names_exist():
    assert len(NAMES) > 30
    assert sorted(set(NAMES) - defined()) == []


def test_the_picture_names_files_that_exist():
    (picture,) = re.findall(r"```\n(.*?)```", PAGE, re.S)
    for name in re.findall(r"[\w/]+\.py", picture):
        places = (ROOT / name, ROOT / "collectives" / name, ROOT / "transport" / name)
        assert any(place.exists() for place in places), name
