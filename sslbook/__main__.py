"""``python -m sslbook`` is ``sslbook``."""

from sslbook.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
