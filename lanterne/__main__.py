"""`lanterne` and `python -m lanterne`."""

import resource
import sys

from lanterne.errors import InputError


def main() -> int:
    """Run the command of sys.argv; the exit code."""
    try:
        from lanterne.bench.cli import main as run

        return run()
    except InputError as error:  # a variable of the environment that cannot be
        print(f"lanterne: {error}", file=sys.stderr)
        return 2
    except (ImportError, OSError) as error:
        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        # A library that cannot be mapped has no number of an error.
        if limit == resource.RLIM_INFINITY or getattr(error, "errno", None) is not None:
            raise
        found = f"got {limit / 1e6:.0f} MB of address space, expected some 1000 MB or more; raise it with `ulimit -v`"
        print(f"lanterne: cannot load its libraries: {found}", file=sys.stderr)
        return 3
    except KeyboardInterrupt:
        print("lanterne: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
