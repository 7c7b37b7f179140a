"""Recording: ops become entries of a pending segment, found again on the trie of tapes."""
