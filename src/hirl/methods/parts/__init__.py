"""Parts that several methods share: heads, norms, optimisers, stochastic depth."""
