from __future__ import annotations

project = "Milepost"
copyright = "2026, the Milepost authors"
extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build", "benchmark", "changes"]
html_theme = "furo"
html_title = "Milepost"
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
nitpicky = True
