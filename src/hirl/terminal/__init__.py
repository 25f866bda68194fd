"""Output on the terminal: progress bars and tables. Commands use it, and so do functions called from Python."""
