from typing import Generic, TypeVar

T = TypeVar("T")


class DataLoader(Generic[T]):
    """Gives the rows of a dataset, each as a batch of its own."""

    def __init__(self, dataset, batch_size, collate_fn, **ignored):
        assert batch_size == 1
        self.dataset, self.collate_fn = dataset, collate_fn

    def __iter__(self):
        return (self.collate_fn([row]) for row in self.dataset)
