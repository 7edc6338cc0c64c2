"""Exchange between ranks: connections, lanes, messages and message formats."""
