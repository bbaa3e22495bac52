"""What a client asks, in which class, and by when: from its bytes and headers to one shape."""
