"""The `lanterne` command: finds the sub-command, parses its options, turns errors into exit codes.

Exit codes: 0 ok; 1 wrong result or a bar missed; 2 usage; 3 not available here.
"""

import argparse
import sys
from importlib import import_module

from .. import __version__
from ..errors import InputError, LanterneError, Unavailable

# name -> (module of this folder, one line of help). A module has add_arguments(parser) and run(args) -> exit code, and is
# imported only when its command is called, so that --help stays instant.
COMMANDS = {
    "info": ("info", "what this machine offers: MPI, UCX, NCCL, GPUs, transports; versions"),
}

EPILOG = """exit codes: 0 ok, 1 wrong result or a bar missed, 2 usage, 3 not available here
sizes like 64K or 1GiB, times like 50ms or 3us; `lanterne COMMAND --help` teaches each command"""


def build_parser(command=None):
    """The parser of the whole command line; only `command`'s own module is imported."""
    parser = argparse.ArgumentParser(
        prog="lanterne",
        description="Collectives and pipelines that stay fast although one rank is late or one link is slow.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"lanterne {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, (module_name, summary) in COMMANDS.items():
        if name != command:
            commands.add_parser(name, help=summary, add_help=False)
            continue
        module = import_module(f".{module_name}", __package__)
        sub = commands.add_parser(
            name,
            help=summary,
            description=module.__doc__,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        module.add_arguments(sub)
        sub.set_defaults(run=module.run)
    return parser


def main(argv=None):
    """Run the command line `argv` (default: sys.argv) and return its exit code."""
    argv = sys.argv[1:] if argv is None else argv
    command = next((word for word in argv if not word.startswith("-")), None)
    try:
        args = build_parser(command).parse_args(argv)
        return args.run(args)
    except InputError as error:
        code, text = 2, error
    except Unavailable as error:
        code, text = 3, error
    except LanterneError as error:
        code, text = 1, error
    except BrokenPipeError:
        sys.stderr.close()
        return 1
    except KeyboardInterrupt:
        code, text = 130, "interrupted"
    print(f"lanterne: {text}", file=sys.stderr)
    return code
