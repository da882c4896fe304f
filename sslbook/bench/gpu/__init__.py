"""``sslbook gpu``: what the book wants of a GPU, in order of worth, for whoever has one for half an hour."""
