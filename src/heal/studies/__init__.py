"""The analyses of the paper, one module each. They return rows and write no files."""
