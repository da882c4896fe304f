"""Images: data sets on disk, all shifts of an image, and a caller's own pictures."""
