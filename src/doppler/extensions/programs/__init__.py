"""Programs that choose models while a stream of inputs flows: routers, cascades, alternatives."""
