"""Our training and the same training written on other tools, in turn."""
