"""Tables, column types, and how columns become values. Imports no other room of the store."""
