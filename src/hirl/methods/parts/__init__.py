"""Parts that several methods share: augmentations, heads, norms, optimisers, stochastic depth."""
