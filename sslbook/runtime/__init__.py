"""Arguments, files that are written whole, and the machine's cores."""
