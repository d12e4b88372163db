"""Pages of documentation: their snippets and links are checked, some are followed as a reader would, a site is made of them."""
