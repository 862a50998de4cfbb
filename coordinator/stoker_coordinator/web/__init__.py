"""Pages for people: HTML and SVG made here, a little JavaScript for what changes meanwhile; nothing from elsewhere."""
