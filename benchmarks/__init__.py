"""Speed and memory, as ratios measured in one run. Not part of the package."""
