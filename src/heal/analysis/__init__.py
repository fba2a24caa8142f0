"""Pure tensor functions without models, hooks or state. One equation per file."""
