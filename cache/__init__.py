"""Pure: the log, the state of topics and their histories, retention and expiry."""
