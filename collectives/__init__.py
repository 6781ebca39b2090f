"""Collectives as data: schedules, one checker, one cost model, one executor, and the Communicator over them."""
