"""What the terminal shows: progress and tables. Below the rooms that call it: Python calls show progress, too."""
