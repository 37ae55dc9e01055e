"""metrics.csv after a kill: rows that are whole, up to where training goes on."""

import pytest

from doppler.training.metrics import CsvMetrics

HEADER, ROWS = "step,loss", ["0,1.5", "1,2.5", "2,3.5"]


@pytest.mark.parametrize(
    ("content", "kept"),
    [
        ("\n".join([HEADER, *ROWS, ""]), ROWS),
        ("\n".join([HEADER, *ROWS]), ROWS[:2]),
        ("\n".join([HEADER, "0,1.5", "1", "2,3.5", ""]), [ROWS[0], ROWS[2]]),
        ("\n".join([HEADER, "0,1.5,7", "one,2.5", "2,3.5", ""]), [ROWS[2]]),
        ("\0\xff\xfe binary", []),
        ("", []),
    ],
)
def test_only_whole_rows_before_the_step_are_kept(content, kept, tmp_path):
    path = tmp_path / "metrics.csv"
    path.write_bytes(content.encode("latin-1"))
    CsvMetrics(save_dir=tmp_path).log_metrics({"loss": 4.5, "epoch": 0.0}, step=3)
    assert path.read_text().split() == [HEADER, *kept, "3,4.5"]
