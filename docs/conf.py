"""The documentation site. `make docs` builds it into site/; a broken link, anchor or reference fails the build."""

import incumbent

project = "incumbent"
author = "incumbent authors"
copyright = author  # noqa: A001 - Sphinx's name for it
release = incumbent.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["snippets"]
nitpicky = True

html_theme = "furo"
html_title = "incumbent"
html_copy_source = False
html_show_sphinx = False

myst_heading_anchors = 3

autodoc_class_signature = "separated"
autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
add_module_names = False
maximum_signature_line_length = 88  # longer ones: a line for each argument
python_use_unqualified_type_names = True

# Types in signatures are shown, not linked: most of them are the standard library's, boto3's or redis-py's.
nitpick_ignore_regex = [("py:.*", ".*")]
