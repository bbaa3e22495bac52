"""The console's routes: a frame of what happens now, one request's life, and the storm bench."""
