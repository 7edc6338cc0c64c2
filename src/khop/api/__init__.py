"""The functions and classes of a training script, one file for each."""
