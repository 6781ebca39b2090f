"""The experiments of `lanterne experiment`, a file each, by paper and figure or table."""
