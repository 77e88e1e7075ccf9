"""Corrections of fairseq: each function replaces one piece of it and names the failure that this removes."""
