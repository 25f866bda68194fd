"""Training (Alg. 2): joins a method and the hierarchy. `pretrain` sets a run up, `loop` trains, `joint` is the loss."""
