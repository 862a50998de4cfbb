"""What objects must be like: admission, selectors, patches, secrets inside them. Pure."""
