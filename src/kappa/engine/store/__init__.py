"""The engine's statements. Each function builds an `Op`; callers own connections and transactions."""
