"""From the bytes of a request to checked images and options."""
