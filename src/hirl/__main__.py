"""`python -m hirl`: the command of the package that Python imports, such as that of another checkout."""

import sys

from hirl.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
