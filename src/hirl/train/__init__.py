"""Training (Alg. 2) of a method with the hierarchy: `pretrain` sets up a run, `loop` trains, `joint` is the loss."""
