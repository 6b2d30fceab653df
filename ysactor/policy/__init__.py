"""Pure decisions: what the rules say, given what is known.

Nothing here waits, reads a clock, draws at random or logs: `now` and the chooser are arguments. The modules import
the vocabulary, each other and a little of the standard library, so that every rule can be tested as a table.
"""
