"""The data set, its batches, masking of anchors, and seeding."""
