"""What the server is about: classifiers, their support sets and reports, the names they go by."""
