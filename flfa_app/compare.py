"""``python -m flfa_app.compare``: see :mod:`flfa_app.launch.compare`."""

import sys

from flfa_app.launch.compare import main

if __name__ == "__main__":
    sys.exit(main())
