"""Tools of the repository; the wheel has none of them."""
