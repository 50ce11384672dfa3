"""Frameworks: models that other frameworks wrote, as trainings of PyTorch here."""
