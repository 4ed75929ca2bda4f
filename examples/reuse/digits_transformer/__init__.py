"""A Flower app that classifies scikit-learn's digits with a small transformer."""
