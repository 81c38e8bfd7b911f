from torch.utils.data.dataset import IterableDataset


def get_worker_info():
    return None
