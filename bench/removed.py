"""Commands and options that are no more, each with what replaces it."""

from collections.abc import Sequence

from lanterne.errors import InputError

# By command, or command and option.
REMOVED: dict[str, str] = {
    "launch --spares": "--restarts, or another process with LANTERNE_JOIN",
}


def refuse_removed(argv: Sequence[str]) -> None:
    """Raise InputError where `argv`, up to its `--`, has a removed command or option."""
    words = argv[: argv.index("--")] if "--" in argv else argv
    names = [word.partition("=")[0] for word in words]
    for removed, instead in REMOVED.items():
        command, _, option = removed.partition(" --")
        if names[:1] == [command] and (not option or f"--{option}" in names):
            raise InputError(f"{removed}: got it, which is no more, expected {instead}")
