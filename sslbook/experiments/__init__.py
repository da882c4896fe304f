"""The experiments of the book, a room for each chapter; nothing below knows them."""
