"""``python -m fedDP``: the same as ``feddp``."""

import sys

from fedDP.cli import main

if __name__ == "__main__":
    sys.exit(main())
