"""How the pages are made of the chapters: executed, held to their numbers, rendered, searched, printed."""
