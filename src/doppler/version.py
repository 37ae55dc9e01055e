"""The version of the package, which everything else takes from here."""

__version__ = "0.2.0.dev0"
