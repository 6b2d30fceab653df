"""The pool: a ledger of who holds what, an actor that opens, recycles and moves connections, and the user's handle."""
