"""The vocabulary: frozen values that cross package borders. Imports nothing of ours."""
