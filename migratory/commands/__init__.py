"""One module per command; `migratory.cli` loads a command's module when it is called."""
