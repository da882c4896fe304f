"""sslbook: the library behind *What Survives Augmentation*, an executable book on self-supervised learning."""

__version__ = "0.1.0"
