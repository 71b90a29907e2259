"""A trained recommender, its policy and its vocabulary as one file."""
