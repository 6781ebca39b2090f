"""transport/nccl."""
