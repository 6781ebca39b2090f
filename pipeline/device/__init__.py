"""pipeline/device."""
