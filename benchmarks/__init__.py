"""Speed and memory, as ratios inside one run: `make bench`, or one part with `python -m benchmarks.spd`."""
