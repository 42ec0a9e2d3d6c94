"""The offsets benchmark on a file of its own: rows, and their table."""

from __future__ import annotations

import json

import pytest

from reports.solver.offsets import main, markdown


@pytest.fixture
def folder(tmp_path):
    # b and c side by side above a; the file's capacity is the contention
    (tmp_path / "tiny.12.csv").write_text("id,lower,upper,size\na,0,9,4\nb,0,3,8\nc,3,9,8\n")
    (tmp_path / "tight.11.csv").write_text("id,lower,upper,size\na,0,9,4\nb,0,3,8\n")
    return tmp_path


def test_rows_say_what_was_packed(folder, capsys):
    output = folder / "rows.json"
    main([str(folder), "--runs", "2", "--limit", "5", "--output", str(output)])

    tight, tiny = json.loads(output.read_text())
    assert (tiny["instance"], tiny["buffers"], tiny["fits"]) == ("tiny", 3, [True, True])
    assert tiny["height_bytes"] == tiny["contention_bytes"] == tiny["capacity_bytes"] == 12
    assert (tight["packed"], tight["contention_bytes"]) == (False, 12)
    table = capsys.readouterr().out
    assert table == markdown([tight, tiny])
    assert "| tiny | 3 | 100.0% | 100.0% | 2 of 2 |" in table
    assert "| tight | 2 | 109.1% | 109.1% | 0 of 2 |" in table
    assert "none, none" in table


def test_a_folder_without_instances_is_refused(tmp_path, capsys):
    with pytest.raises(SystemExit):
        main([str(tmp_path)])
    assert "no NAME.CAPACITY.csv" in capsys.readouterr().err
