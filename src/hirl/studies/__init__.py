"""Studies over several runs: base against HIRL, and the search for levels and negatives."""
