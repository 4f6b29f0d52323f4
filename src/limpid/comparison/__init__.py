"""Two variants of the same computation, compared within computed bounds: rounding or bug?"""
