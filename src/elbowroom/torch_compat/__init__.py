"""Private symbols of torch: all that this package uses are named here."""
