"""``back-translate``: translate each line of a text into another language and back, with translation models of any kind."""
