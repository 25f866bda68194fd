"""The `hirl` command, one file per command."""
