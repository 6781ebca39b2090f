"""The secret of a job for which nobody has set LANTERNE_TOKEN: made of a key that only this user can read.

The key is a file in the user's cache folder (LANTERNE_CACHE, else ~/.cache/lanterne), made on first use. Ranks of one
user on one host share it, and those on several hosts do where their home is a shared folder, as on most clusters.
"""

import hmac
import os
import secrets
from contextlib import suppress
from pathlib import Path

from lanterne.errors import InputError

KEY_NBYTES = 32
FILE = "job-key"


def cache_folder() -> Path | None:
    """The folder of this user's cache: LANTERNE_CACHE, else ~/.cache/lanterne; None if that is "off", or no home."""
    folder = os.environ.get("LANTERNE_CACHE", "")
    if folder == "off":
        return None
    try:
        return Path(folder or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "lanterne"))
    except RuntimeError:  # a user without a home, as in containers
        return None


def job_secret(job: str) -> str | None:
    """The token of the job that this user names `job`, the same in all its processes; None if no key can be kept.

    Raises:
        InputError: others can read the key.
    """
    folder = cache_folder()
    key = None if folder is None else _key(folder / FILE)
    return None if key is None else hmac.digest(key, job.encode(), "sha256").hex()


def _key(path: Path) -> bytes | None:
    with suppress(OSError):
        if not path.exists():
            _make(path)
        status = path.stat()
        if status.st_uid != os.geteuid() or status.st_mode & 0o077:
            raise InputError(
                f"{path}: got a key of user {status.st_uid} with mode {status.st_mode & 0o777:o}, expected one that "
                f"only user {os.geteuid()} can read; remove it, and the next job makes another, or set LANTERNE_TOKEN"
            )
        key = path.read_bytes()
        return key if len(key) == KEY_NBYTES else None
    return None


def _make(path: Path) -> None:
    """Put a new key there, whole or not at all, unless another process was first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with open(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
            file.write(secrets.token_bytes(KEY_NBYTES))
        with suppress(FileExistsError):
            os.link(draft, path)
    finally:
        draft.unlink(missing_ok=True)
