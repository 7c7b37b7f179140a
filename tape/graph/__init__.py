"""The Wengert list, which a tape, a jaxpr and the body of a loop all are: its entries, the walks over them, and the reverse sweep."""
