"""Whether a saved result still holds: its question is asked again and every value is compared."""
