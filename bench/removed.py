"""Commands and options that are no more, each with what replaces it."""

from collections.abc import Sequence

from lanterne.errors import InputError

# By command, or command and option.
REMOVED: dict[str, str] = {
    "launch --spares": "--restarts, or another process with LANTERNE_JOIN",
    "witness": "LANTERNE_STORE=redis://HOST:PORT, a Redis that outlives the hosts of the job",
    "lab --witness": "LANTERNE_STORE=redis://HOST:PORT, a Redis that all hosts of the lab reach",
    "pipeline train --spares": "--restarts",
    "pipeline train --state": "nothing: what is known of incidents is in the job's store",
}


def refuse_removed(argv: Sequence[str]) -> None:
    """Raise InputError where `argv`, up to its `--`, has a removed command or option."""
    words = argv[: argv.index("--")] if "--" in argv else argv
    names = [word.partition("=")[0] for word in words]
    for removed, instead in REMOVED.items():
        command, _, option = removed.partition(" --")
        length = len(command.split())
        if " ".join(names[:length]) == command and (not option or f"--{option}" in names[length:]):
            raise InputError(f"{removed}: got it, which is no more, expected {instead}")
