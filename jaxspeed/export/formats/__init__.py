"""Files that other programs load a trained model from, a module for each format."""
