"""The stream to the coordinator: says what the node is and has, and has done what the coordinator wishes for."""
