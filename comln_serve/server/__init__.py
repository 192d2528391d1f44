"""The process: sockets, HTTP as bytes, signals."""
