"""View sources, which choose the texts of a positive pair, and the views made from these texts."""
