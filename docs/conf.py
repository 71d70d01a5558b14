"""How Sphinx builds these pages into a site: `scripts/docs`. Nothing in the site is loaded from elsewhere."""

from pathlib import Path

import deadpool

project = "DeadPool"
author = "The DeadPool authors"
release = deadpool.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.viewcode", "sphinx_copybutton", "sphinxcontrib.mermaid"]
source_suffix = {".md": "markdown"}
root_doc = "index"
html_theme = "furo"
html_title = f"DeadPool {release}"

myst_heading_anchors = 4
myst_fence_as_directive = ["mermaid"]

autodoc_member_order = "bysource"
autodoc_typehints = "description"

# scripts/docs puts mermaid there. Without it a page shows the text of its diagrams; nothing is fetched by the reader.
mermaid_use_local = "mermaid.esm.min.mjs"
html_static_path = ["assets"] if Path(__file__).with_name("assets").is_dir() else []
