"""What file systems say of their journals."""

from pathlib import Path

from kv_cache.bench.probes.journal import Written, read_journals

JBD2 = """{count} transactions ({count} requested), each up to 5461 blocks
average:
  0ms waiting for transaction
  92us average transaction commit time
  47 handles per transaction
  9 blocks per transaction
  {blocks} logged blocks per transaction
"""


def ext4(root: Path, count: int, blocks: int) -> None:
    info = root / "proc/fs/jbd2/vda1-8/info"
    info.parent.mkdir(parents=True, exist_ok=True)
    info.write_text(JBD2.format(count=count, blocks=blocks))


def test_ext4_tells_an_average_without_its_fraction_so_that_the_least_is_said(
    tmp_path: Path,
) -> None:
    ext4(tmp_path, 100, 4)
    before = read_journals({"vda1": tmp_path}, tmp_path)
    assert before == Written(400 * 4096, 500 * 4096)
    ext4(tmp_path, 1100, 11)
    after = read_journals({"vda1": tmp_path}, tmp_path)
    assert after.since(before) == (1100 * 11 - 100 * 5) * 4096
    assert before.since(after) == 0


def test_xfs_tells_sectors_and_file_systems_add_up(tmp_path: Path) -> None:
    stats = tmp_path / "sys/fs/xfs/vdb/stats/stats"
    stats.parent.mkdir(parents=True)
    stats.write_text("ig 1 0 0 1 0 0 0\nlog 2684 48680 4 4569 4740\npush_ail 0 0\n")
    ext4(tmp_path, 100, 4)
    places = {"vda1": tmp_path, "vdb": tmp_path}
    assert read_journals(places, tmp_path) == Written(
        400 * 4096 + 48680 * 512, 500 * 4096 + 48680 * 512
    )


def test_a_device_without_a_journal_and_one_that_was_just_mounted_have_written_nothing(
    tmp_path: Path,
) -> None:
    ext4(tmp_path, 0, 0)
    (tmp_path / "proc/fs/jbd2/vda1-8/info").write_text("0 transactions (0 requested), each up to\n")
    assert read_journals({"vda1": tmp_path, "vdc": tmp_path}, tmp_path) == Written(0, 0)
