"""What it costs a router to be observed: metrics, log, journal, traces, and Prometheus in its moods."""
