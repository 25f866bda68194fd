"""What is on disk: the run folder, checkpoints, encoders and results."""
