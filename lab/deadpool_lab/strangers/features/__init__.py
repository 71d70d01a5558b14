"""One file per family of features. `features/*.py` offer lists of Feature; `generate.py` draws from them."""
