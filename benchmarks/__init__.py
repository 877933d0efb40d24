"""What a run costs, beside the locks and the idempotency that people use: ``python -m benchmarks``."""
