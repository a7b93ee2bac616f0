"""Files that ship with fedDP: data tables and what is known about their origin."""
