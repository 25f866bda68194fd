"""One file a group of commands: what each asks for, and whom it calls."""
