"""Tools of the project: its docs, its packages, its reviewers."""
