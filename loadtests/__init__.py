"""The test bed: load, faults, clusters, scenarios, simulation, figures and pages. No service imports any of it."""
