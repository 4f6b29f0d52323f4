"""Backward passes by hand, held against their own forward passes: ⟨ȳ, J v⟩ = ⟨x̄, v⟩ along random directions."""
