"""``back-translate``: every line of a text through another language and back, by fairseq translation models.

text -> chunks of lines -> tokens -> beam search or sampling -> text -> the same with the other model -> journal -> output
"""
