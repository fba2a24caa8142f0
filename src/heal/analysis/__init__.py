"""Pure tensor functions: no model, no hook, no state. One idea a file."""
