"""Tables and the HTML report of a grid."""
