"""`python -m lanterne` is the `lanterne` command."""

import sys

from lanterne.bench.cli import main

sys.exit(main())
