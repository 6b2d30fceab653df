"""What runs in a contender's own process: ``python -m integration.bench.worker JOB``."""
