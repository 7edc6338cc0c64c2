"""Importers of public datasets and of other programs' file formats."""
