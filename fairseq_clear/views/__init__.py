"""View sources: which texts form a positive pair, and the views made of them."""
