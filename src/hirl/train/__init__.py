"""Training (Alg. 2): joins a method and the hierarchy."""
