"""The baseline of own features beside a run: trained in the run's folder, and scored."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from khop.cli.lines import tell
from khop.cli.run_folder import CHECKPOINTS, write_config, write_whole
from khop.config.build import Run
from khop.config.label_propagation import has_label_propagation, label_propagation
from khop.config.own_features import own_features
from khop.config.read import RawRun
from khop.inference.chunks import Progress
from khop.runtime.group import this_group
from khop.training.baselines import OWN_FEATURES
from khop.training.checkpoint_writer import BEST, LAST
from khop.training.observer import Unwatched
from khop.training.replace_folder import pushed_folders

BASELINES = "baselines"
_TRAINED = "trained"  # a file beside the checkpoints of a baseline whose training has ended
# Options of an evaluation that would change the training of the baseline.
_DECIDING = frozenset({"evaluation.batch_size", "evaluation.batch_edges", "links.eval_negatives"})


@dataclass(frozen=True)
class OwnFeatures:
    """The baseline of a run, in a folder of the run's folder."""

    run: Run  # of the baseline
    folder: Path

    @classmethod
    def of(cls, run: Run, raw: RawRun, folder: Path) -> OwnFeatures:
        """Make the baseline of the run in `folder`; ValueError if the task has no own features."""
        return cls(own_features(run, raw), folder / BASELINES / OWN_FEATURES)

    def train(self) -> None:
        """Train the model as the run trains its own, or continue, and load its best weights. Collective."""
        trainer = self.run.trainer(self.folder, Unwatched())
        if self._shared(bool(pushed_folders(self.folder / CHECKPOINTS / LAST))):
            trainer.resume()
        trainer.fit()
        if this_group().rank == 0:
            write_config(self.folder, self.run.config)
            write_whole(self.folder / _TRAINED, b"")
        self.run.restore(self.folder / CHECKPOINTS / BEST, tell, ())

    def load(self, given: frozenset[str]) -> None:
        """Load the best weights, after training if there are none. `given` are options of an evaluation."""
        if self._shared((self.folder / _TRAINED).is_file()):
            self.run.restore(self.folder / CHECKPOINTS / BEST, tell, given)
            return
        if given & _DECIDING:
            raise ValueError(
                f"--baselines: is not trained yet, and {', '.join(sorted(given & _DECIDING))} would change "
                "its training; run khop evaluate with --baselines alone first"
            )
        self.train()

    def scores(self, splits: tuple[str, ...], progress: Progress, beside: Sequence[str]) -> dict[str, float]:
        """Compute scores, such as "val/own-features/accuracy". Collective."""
        scores = self.run.scores(splits, progress, beside)
        named = {name: name if "/" in name else f"{name}/{self.run.task.metric}" for name in scores}
        return {named[name].replace("/", f"/{OWN_FEATURES}/", 1): score for name, score in scores.items()}

    def _shared(self, is_there: bool) -> bool:
        """Return the finding of rank 0."""
        group = this_group()
        with group.exchanging("looking for a baseline"):
            return bool(json.loads(group.share_bytes(json.dumps(is_there).encode())))


def label_propagation_scores(run: Run, splits: Sequence[str], beside: Sequence[str]) -> Mapping[str, float]:
    """Return the scores of label propagation; over servers there are none, and a message says so.

    Collective.
    """
    if run.graph.servers is not None and has_label_propagation(run) and this_group().rank == 0:
        tell(
            "--baselines: label propagation needs the edges, and servers have them; it is left out. Evaluate "
            "the folder with --baselines"
        )
    return label_propagation(run, splits, beside)
