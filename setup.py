"""Link the folders at the top into `lanterne/`, and `lanterne/` into `src/`; pyproject.toml says the rest.

Archives and some checkouts hold no symbolic links, so none is committed. In an sdist `src/lanterne` is a real folder.
"""

import sys
from pathlib import Path

# pip would say so when it has fetched all dependencies.
if sys.version_info < (3, 11):  # noqa: UP036
    sys.exit(f"lanterne: got Python {sys.version.split()[0]}, expected 3.11 or newer")

from setuptools import setup

ROOT = Path(__file__).resolve().parent
FOLDERS = ("bench", "collectives", "failslow", "kernels", "pipeline", "transport")
LINKS = {f"lanterne/{folder}": f"../{folder}" for folder in FOLDERS} | {
    f"src/{folder}": f"../{folder}" for folder in ("lanterne", "evaluation") if (ROOT / folder / "__init__.py").exists()
}

try:
    for name, target in LINKS.items() if (ROOT / "lanterne").is_dir() else ():
        if not (ROOT / name).is_dir():
            (ROOT / name).parent.mkdir(exist_ok=True)
            (ROOT / name).symlink_to(target)
except OSError as error:
    sys.exit(f"lanterne: {error}; expected a folder in which symbolic links can be made")
setup()
