"""How much is kept of what a job does: memory is bounded, however long it runs."""

# Of what people read: notices, incidents, kinds of calls, the latest iterations.
KEPT = 256
# Of what ranks have in hand at once: calls that are open, names, channels.
OPEN = 4096
# Of what goes on for ever: iterations, communicators, calls that are matched.
MANY = 1 << 16
