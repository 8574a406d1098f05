"""`python -m tests.model_check`: see `run`."""

import sys

from tests.model_check.run import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
