"""Model repositories: the directories on disk and the versions to serve from them."""
