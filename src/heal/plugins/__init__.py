"""What other programs load: each file is for one of them, and imports it only when that program asks."""
