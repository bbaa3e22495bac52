"""What goes wrong on purpose: slow workers, a wire that fails, a worker that answers by tricks."""
