"""The provider `local`: no key, no download. A parser finds concepts and relations, a small model makes vectors."""
