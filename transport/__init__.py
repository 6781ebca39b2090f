"""Point-to-point transports: one interface (base), many ways to move bytes."""
