"""Pure: who gets what of the committed messages; sessions, interests, catch-up."""
