"""From a trained or foreign network to a bundle."""
