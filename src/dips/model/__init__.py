"""A trained model as one file: recommender, policy and item ids."""
