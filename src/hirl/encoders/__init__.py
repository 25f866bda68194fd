"""Encoders: networks by name, and encoder files with their metadata. They know no run."""
