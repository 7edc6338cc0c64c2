"""Tables of users as graph folders: specs, readers, encoders, and the pipeline between them."""
