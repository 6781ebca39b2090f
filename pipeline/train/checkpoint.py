"""All that training needs to go on, on the host: independent of how the model was cut, copied and planned."""

import contextlib
import json
import os
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lanterne.errors import InputError

VECTORS = ("parameters", "mean", "square")


@dataclass(frozen=True, eq=False)
class TrainingState:
    """Where training is.

    Attributes:
        iteration: how many iterations were done, which is also where the data are.
        steps: steps of the optimizer.
        parameters, mean, square: (num_whole,) arrays of the whole model: weights, and the averages of Adam.
    """

    iteration: int
    steps: int
    parameters: NDArray[Any]
    mean: NDArray[Any]
    square: NDArray[Any]


def save(path: str | Path, state: TrainingState, about: Mapping[str, Any]) -> None:
    """Replace file `path` by `state` and `about`, a JSON object; whoever reads it finds the old file or the new one.

    Also after a power failure: the data are on the disk before the name is.

    Raises:
        InputError: the folder does not exist or cannot be written.
    """
    path = Path(path)
    # Of one name, so that what a killed run left is overwritten by the next.
    temporary = path.with_name(f".{path.name}.part")
    header = json.dumps({"about": about, "iteration": state.iteration, "steps": state.steps})
    try:
        with open(temporary, "wb") as file:
            np.savez(file, header=np.array(header), **{name: getattr(state, name) for name in VECTORS})
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise InputError(f"cannot write {path}: {error.strerror}") from error


def load(path: str | Path, about: Mapping[str, Any]) -> TrainingState:
    """The TrainingState in file `path`, saved of a run with the same `about`.

    Raises:
        InputError: the file cannot be read, is no checkpoint, or of another `about`: names the first difference.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            header = json.loads(str(file["header"]))
            vectors = {name: file[name] for name in VECTORS}
            found = header["about"]
            state = TrainingState(int(header["iteration"]), int(header["steps"]), **vectors)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(f"{path}: is no checkpoint of lanterne, expected a file that --checkpoint wrote") from error
    for key, value in about.items():
        if found.get(key) != value:
            raise InputError(f"{path}: was saved with {key} {found.get(key)}, expected {value}, as this run has it")
    return state
