"""HIRL inside other people's trainers and libraries: one file each, which imports that library."""
