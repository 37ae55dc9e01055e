"""Do the tests notice when the code is changed? `python -m benchmarks.mutations`."""
