# SPDX-License-Identifier: Apache-2.0
"""Sphinx's settings for the pages that stage.py has laid out; see scripts/build_docs."""

import os

project = "Thinwire"
author = "The Thinwire authors"
copyright = "The Thinwire authors, Apache-2.0"
version = release = os.environ["THINWIRE_VERSION"]

extensions = ["myst_parser"]
root_doc = "index"
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
myst_heading_anchors = 6
myst_enable_extensions = []
suppress_warnings = []

html_theme = "furo"
html_title = f"Thinwire {version}"
html_static_path = ["style.css"]
html_css_files = ["style.css"]
html_extra_path = ["extra"]
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
html_theme_options = {"navigation_with_keys": True}
