"""The planning benchmark: what planners make of the models and machines that the literature used."""
