"""What people look at: documents of every room, their equations as MathML; over HTTP, in a file, in a notebook."""
