"""Text for language modelling (section 4.3): corpora -> words -> a vocabulary and memory-mapped token files.

    corpora.py     which files make up the splits of WikiText, Gutenberg, GigaWord or a folder of text
    hub.py         WikiText from the Hugging Face hub (extra `lm`)
    reading.py     files -> text, one unit (line, paragraph) per line
    tokenizers.py  text -> words
    vocabulary.py  words <-> ids
    token_file.py  ids on disk
    prepare.py     all of it, streamed and in parallel

Nothing here imports torch: preparing text starts worker processes, and they should start at once.
"""
