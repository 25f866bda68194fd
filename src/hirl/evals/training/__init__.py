"""What several evaluations train with: classifiers, their settings and regularisation, and a resumable loop."""
