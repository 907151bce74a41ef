"""Small mistakes, planted one at a time, and whether a test notices: `make mutants SEED=1 COUNT=40`."""
