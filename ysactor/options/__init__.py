"""How options are read: from keywords, a DSN, the environment and the password file, to checked values.

`table` names every option and its reader; `read` merges the sources and applies the rules between options; the
other modules each know one kind of value. Nothing here is public: users meet it through `ysactor.config`.
"""
