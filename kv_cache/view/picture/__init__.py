"""What each kind of document looks like. `base` has paper, pen and the reading of numbers; one file
a document decides what is drawn. Only `view/picture/plot` needs to know that it is matplotlib."""
