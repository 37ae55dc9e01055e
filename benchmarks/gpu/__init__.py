"""All that needs a GPU, by one command; see __main__.py."""
