"""The cluster's actor: where connections should go.

It owns the servers, placement, counts, failures and the refresh clock.
"""
