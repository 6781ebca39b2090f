"""The command line, benchmarks and plots."""
