"""Tiers: the places below the device where bytes go, and the ways there."""
