"""A worker, to be killed, of a study of made-up configurations in a database.

Arguments: URL, folder, seconds a prompt, and a name of the machine if it is not this one's.
"""

import socket
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # of a script, it is this file's folder

import specexp.sweep.storage as storage
from helpers.fake_bench import FakeBench, opened, settings
from specexp.sweep.workers import SharedSearch, Workers

TRIALS = 24

if __name__ == "__main__":
    storage.HEARTBEAT_SECONDS, storage.GRACE_SECONDS = 1, 4
    storage.LOST_SECONDS = 60.0
    url, folder, seconds = sys.argv[1], Path(sys.argv[2]), float(sys.argv[3])
    for host in sys.argv[4:]:
        socket.gethostname = lambda name=host: name
    folder.mkdir(parents=True, exist_ok=True)
    chosen = settings(storage=url, n_trials=TRIALS)
    bench = FakeBench(seconds)
    study = opened(chosen, folder)
    process = Workers(None, chosen)
    process.join(study, chosen)
    SharedSearch(study, chosen, bench).run()
    while process.others_running(study):  # as before a confirmation
        time.sleep(0.5)
    print("\n".join(bench.measured))
