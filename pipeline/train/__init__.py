"""pipeline/train."""
