"""Tables of memory that others measured on GPUs: a module each makes its rows again, or says why that cannot be."""
