"""transport/job."""
