"""What happened, kept for headers, log lines, metrics, traces and the console."""
