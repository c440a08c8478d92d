"""What writes index folders: build, add, delete and reindex, each beside the index and then in its place."""
