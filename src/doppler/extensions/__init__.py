"""What the paper does not need: each folder is one extension, and the core imports none of them.

An extension that has a ``plugin.py`` registers there what it adds (support/plugins.py).
"""
