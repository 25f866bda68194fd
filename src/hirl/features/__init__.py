"""Features of images: an encoder opened by any name, the pass over images, its cache, and files of features."""
