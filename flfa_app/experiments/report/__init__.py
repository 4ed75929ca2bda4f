"""From numbers to tables and a page."""
