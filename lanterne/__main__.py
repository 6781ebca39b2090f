"""`lanterne` and `python -m lanterne`."""

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
    except KeyboardInterrupt:
        print("lanterne: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
