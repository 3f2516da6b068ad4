"""Records to numbers: pure, mergeable, of bounded size."""
