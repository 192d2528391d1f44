"""What protects a browser's user: origins, hosts, headers."""
