"""Extensions, which the paper does not need: one per folder, and the core imports none of them.

An extension with a ``plugin.py`` registers there what it adds (hooks.py).
"""
