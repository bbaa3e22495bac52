"""Who starts, who waits and who is refused: the shell over `services.core`, which decides."""
