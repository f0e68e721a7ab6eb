"""All storage bytes of a recipe at once, for tests of small tensors."""

from inference_kernels.seeded.recipes import Recipe, recipe_chunks


def recipe_bytes(recipe: Recipe) -> bytes:
    return b"".join(recipe_chunks(recipe))
