"""The workers: the list, their health, and the ledger of what each holds."""
