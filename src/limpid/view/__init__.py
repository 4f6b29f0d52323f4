"""What people look at: the documents of every room with their equations as MathML, over HTTP, in a file, in a notebook."""
