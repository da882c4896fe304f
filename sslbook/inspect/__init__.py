"""What a trained network's layers hold of the covariance operator, beside its controls: ``sslbook inspect``."""
