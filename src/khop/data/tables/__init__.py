"""Import of tables as graph folders: specs, readers, encoders and the pipeline."""
