"""What guidellm's data loader takes of torch, so that two gigabytes need not be installed for it: a seed that it does not
use, and, in `utils.data`, an iteration in one process."""


class Generator:
    def manual_seed(self, seed):
        return self
