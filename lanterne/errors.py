"""The errors that lanterne raises on purpose. Each message says what, where, got and expected, in one line.

The command line turns them into exit codes: InputError 2, Unavailable 3, any other LanterneError 1.
"""

import sys
from collections.abc import Iterable


class LanterneError(Exception):
    """Base of every error that lanterne raises on purpose.

    Attributes: `told`: another rank has raised it first, and told this one; `arrays`: which device arrays of this
    rank's calls are whole, where one ended while calls were queued.
    """

    told: bool = False
    arrays: str = ""

    def tell_arrays(self, arrays: str) -> None:
        """Set `arrays`, and make it a note, unless that was done."""
        if not self.arrays:
            self.arrays = arrays
            self.add_note(arrays)


class InputError(LanterneError, ValueError):
    """What was asked for cannot be: a bad argument, file, plan or problem."""


class Unavailable(LanterneError, RuntimeError):
    """This machine lacks something: a library, a device, a permission. The message says how to get it."""


class ScheduleError(InputError):
    """A collective schedule or pipeline plan that is not valid; the message names the place."""


class TransportError(LanterneError, RuntimeError):
    """A transport failed or was used wrongly.

    Attributes: `rank_unknown`: a library told of a failure but not whose, so another rank's may be behind it.
    """

    rank_unknown: bool = False


class TransportTimeout(TransportError):
    """A wait ran out of time. `peers` holds the ranks that were waited for."""

    def __init__(self, message: str, peers: Iterable[int] = ()) -> None:
        super().__init__(message)
        self.peers: tuple[int, ...] = tuple(peers)


class PeerFailed(TransportError):
    """Another rank died or closed its end. `rank` says which."""

    def __init__(self, rank: int, reason: str = "died") -> None:
        super().__init__(f"rank {rank} failed: {reason}")
        self.rank = rank
        self.reason = reason


class Revoked(TransportError):
    """A rank has ended a communicator on all its members (Communicator.revoke, or shrink)."""


def need_package(package: str, what: str) -> None:
    """Raise Unavailable, with the command that installs it, where `package` is missing, which `what` needs."""
    from importlib.util import find_spec

    if find_spec(package) is None:
        raise Unavailable(f"{what}: needs {package}; install it with: {sys.executable} -m pip install {package}")


def did_you_mean(got: object, known: Iterable[str]) -> str:
    """What an error says of a name that is not known: which known one is close to it; empty where none is."""
    from difflib import get_close_matches  # 5 ms, and hardly ever needed

    close = get_close_matches(str(got), list(known), 1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def one_of(got: object, known: Iterable[str], where: str = "") -> str:
    """What an error says of an unknown name, got `where`: what was got, which known name is close, what is expected."""
    names = list(known)
    return f"got {got!r}{where}{did_you_mean(got, names)}, expected one of {', '.join(names)}"


def shown(name: object) -> str:
    """A name of a file, or another's message, as it stands in one line."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(name))
