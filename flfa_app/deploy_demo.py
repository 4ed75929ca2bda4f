"""``python -m flfa_app.deploy_demo``: see :mod:`flfa_app.launch.demo`."""

import sys

from flfa_app.launch.demo import main

if __name__ == "__main__":
    sys.exit(main())
