"""What is said of times that were measured while others kept the machine busy."""

from lanterne.collectives.auto.load_meter import BUSY_CORES


def busy_note(cores: float) -> str:
    """What is said of measured times while others used so many cores; "" where that is hardly any."""
    if cores <= BUSY_CORES:
        return ""
    return f"# busy: others used {cores:.1f} cores meanwhile, so these times say little, and no verdict"
