"""The paper's analyses, one file a question. Each returns rows; none writes anything."""
