"""A training script that says where it runs and then stays until it is ended."""

import os
import sys
import threading
from pathlib import Path

Path(sys.argv[1], f"rank{os.environ['RANK']}-{os.getpid()}").touch()
threading.Event().wait()
