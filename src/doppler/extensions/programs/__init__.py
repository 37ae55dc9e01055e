"""Programs that choose a model for each input of a stream: routers, cascades, and alternatives."""
