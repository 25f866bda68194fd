"""Measures of representations and trees: pure functions of tensors."""
