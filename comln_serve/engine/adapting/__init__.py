"""From a support set to a classifier, and from one version to the next."""
