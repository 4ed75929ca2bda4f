"""Readers of file formats that several data sets use."""
