"""The kernel: mailboxes, life cycle, timers. It knows nothing about databases, and imports nothing of ours."""

from .lifecycle import open_tree
from .mailbox import Ended, Inbox, Ref, Reply, open_mailbox
from .timers import Timer, send_after

__all__ = ["Ended", "Inbox", "Ref", "Reply", "Timer", "open_mailbox", "open_tree", "send_after"]
