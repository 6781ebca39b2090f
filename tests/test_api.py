"""The public API against a list that was recorded: a name or a signature that changes shows here.

Record it again with `python tests/test_api.py`, and say in the commit why it changed.
"""

import inspect
import re
from pathlib import Path

import lanterne

RECORDED = Path(__file__).with_name("api.txt")


def described():
    """Return one line for each public name, and for each public member of a class."""
    lines = []
    for name in sorted(lanterne.__all__):
        value = getattr(lanterne, name)
        lines.append(name + _signature(value))
        if inspect.isclass(value):
            members = sorted(
                member for member in dir(value) if not (member.startswith("_") or hasattr(Exception, member))
            )
            lines += [f"{name}.{member}" + _signature(inspect.getattr_static(value, member)) for member in members]
    return lines


def _signature(value):
    if isinstance(value, property):
        return ""
    try:
        found = inspect.signature(value)
    except (TypeError, ValueError):
        return ""
    parameters = [each.replace(annotation=inspect.Parameter.empty) for each in found.parameters.values()]
    return str(found.replace(parameters=parameters, return_annotation=inspect.Signature.empty))


def test_every_public_name_is_on_the_page_of_the_api():
    page = (RECORDED.parent.parent / "docs" / "api.md").read_text()
    named = set(re.findall(r"^\.\. auto\w+:: lanterne\.(\w+)$", page, re.M))
    named |= set(re.search(r":members: (.*Error.*)$", page, re.M)[1].split(", "))
    assert set(lanterne.__all__) - {"__version__"} <= named


def test_the_api_is_the_recorded_one():
    assert described() == RECORDED.read_text().splitlines()


if __name__ == "__main__":
    RECORDED.write_text("\n".join(described()) + "\n")
