"""``python -m flfa_app.launch``: see :mod:`flfa_app.launch.cli`."""

import sys

from flfa_app.launch.cli import main

sys.exit(main())
