namespace khop {}
