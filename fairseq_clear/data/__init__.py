"""The data set, its batches, and the masks of the masked language model."""
