"""Options that several commands share: one name, one meaning, one help text."""

import argparse

from lanterne.bench.output.units import whole
from lanterne.transport.registry import usual_transport


def add_json(parser: argparse.ArgumentParser, what: str = "everything") -> None:
    """Add --json FILE."""
    parser.add_argument("--json", metavar="FILE", help=f"write {what} as JSON ('-' for standard output)")


def add_plot(parser: argparse.ArgumentParser, what: str = "the results") -> None:
    """Add --plot FILE."""
    parser.add_argument("--plot", metavar="FILE", help=f"draw {what} (png, svg, pdf)")


def add_ranks(parser: argparse.ArgumentParser, other_name: str = "--ranks") -> None:
    """Add -n N, which starts a job here."""
    parser.add_argument("-n", other_name, type=int, metavar="N", help="start N ranks here")


def add_transport(parser: argparse.ArgumentParser, names: str = "mpi, ucx, tcp, nccl, or local: threads") -> None:
    """Add --transport NAME."""
    parser.add_argument("--transport", default=usual_transport(), help=f"{names} (default: %(default)s)")


def add_device(parser: argparse.ArgumentParser, what: str) -> None:
    """Add --device cpu|cuda; `what` is there."""
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"), help=f"where {what} (default cpu)")


def add_timeout(parser: argparse.ArgumentParser) -> None:
    """Add --timeout T."""
    parser.add_argument("--timeout", default="60s", metavar="T", help="of every wait (default 60s)")


def add_seed(parser: argparse.ArgumentParser, what: str) -> None:
    """Add --seed S of `what` is drawn."""
    parser.add_argument("--seed", type=whole(0), default=0, metavar="S", help=f"of {what} (default 0)")


def add_listen(parser: argparse.ArgumentParser) -> None:
    """Add --listen ADDR of the page and the metrics."""
    parser.add_argument("--listen", metavar="ADDR", help="serve a page and /metrics at PORT, of loopback, or HOST:PORT")


def add_link_model(parser: argparse.ArgumentParser) -> None:
    """Add --alpha, --bandwidth and --gamma of equal links, and --topology of others."""
    parser.add_argument("--alpha", default="3us", metavar="TIME", help="start-up time of a message (default: 3us)")
    parser.add_argument("--bandwidth", default="450GB/s", metavar="RATE", help="of a rank, each way (default: 450GB/s)")
    parser.add_argument("--gamma", metavar="RATE", help="rate at which a rank adds (default: adding is free)")
    parser.add_argument(
        "--topology", metavar="FILE|PRESET", help="ranks and links of a file, or such as dgx-8x8 (docs/topology.md)"
    )
