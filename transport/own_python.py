"""The Python that runs lanterne's own programs in processes of their own."""

import sys
from pathlib import Path

import lanterne


def own_python() -> list[str]:
    """The command of this Python, to which `-m MODULE` or `-c CODE` is added.

    It imports nothing from the current folder, where a file may have a library's name. Where lanterne itself was found
    there, in a checkout that nobody installed, that folder is lanterne's own, and stays.
    """
    checkout = str(Path(lanterne.__file__).parents[1])
    return [sys.executable] if not sys.flags.safe_path and sys.path[:1] == [checkout] else [sys.executable, "-P"]
