"""The core of HIRL: trees of prototypes and semantic path discrimination. Needs torch only and can be used alone."""
