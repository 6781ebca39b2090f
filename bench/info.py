"""Say what this machine offers and what is missing, with the command that would install it."""


def add_arguments(parser):
    parser.add_argument("--json", metavar="FILE", help="write the answer as JSON ('-' for standard output)")


def run(args):
    raise NotImplementedError
