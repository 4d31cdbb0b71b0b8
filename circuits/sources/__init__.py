"""Where weights come from, one module for each kind of place; `find` chooses among them."""
