"""Exchange between ranks: connections, lanes, messages and their formats."""
