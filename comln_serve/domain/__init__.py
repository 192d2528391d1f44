"""What the server is about: classifiers, their support sets, the names they go by."""
