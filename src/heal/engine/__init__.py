"""How a method takes part in a transformers model: the attention function, the hooks, one generation's state."""
