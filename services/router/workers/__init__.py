"""All workers: who they are, whether they are well, what each holds of ours, and which one gets a request."""
