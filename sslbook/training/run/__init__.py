"""One run of training: its settings, its steps, and what makes it the same after a kill."""
