"""Reading definitions written in SQL."""
