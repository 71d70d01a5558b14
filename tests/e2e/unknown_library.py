"""trainer_script.py with a transformers of which nobody has heard yet."""

import runpy
from pathlib import Path

from deadpool.integrations import library_check

installed = library_check.version
library_check.version = lambda package: "5.99.0" if package == "transformers" else installed(package)

runpy.run_path(str(Path(__file__).with_name("trainer_script.py")), run_name="__main__")
