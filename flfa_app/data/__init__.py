"""Data sets: declarations, readers, validation, cache and partitions.

Import from the modules. The package itself and :mod:`flfa_app.data.sources`, which has
the names of the data sets, import neither torch nor the libraries behind a data set.
"""
