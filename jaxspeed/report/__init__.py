"""One HTML file that shows runs: figures, curves, images, comparisons."""
