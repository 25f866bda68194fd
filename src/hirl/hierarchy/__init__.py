"""The paper's heart: hierarchical prototypes and semantic path discrimination. Stands on torch alone."""
