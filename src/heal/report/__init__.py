"""For maintainers: the experiments behind docs/results.md and the page itself. Users need `heal compare` instead."""
