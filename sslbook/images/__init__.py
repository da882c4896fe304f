"""Images: data sets on disk, enumerated augmentations, and a caller's own pictures."""
