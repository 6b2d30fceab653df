"""One connection: its actor owns the socket from connect to close; its holder drives it while a lease lasts."""
