"""retr bench: dimensions x transforms x kinds of index, measured on held-out queries."""
