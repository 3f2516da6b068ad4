"""What a command would do, shown without doing it (`--dry-run`)."""

from collections.abc import Sequence

from kv_cache.view.parts import FactList, Remarks, View, ViewSection


def planned(
    rows: Sequence[tuple[str, str]], *, scale: str = "", warnings: Sequence[str] = ()
) -> View:
    """Return the view of a command that was checked. `scale` says how much would be done."""
    sentence = f"All was checked and nothing was done{scale and ': '}{scale}."
    parts = (FactList(rows=rows), Remarks(texts=warnings))
    return View(
        title="Dry run",
        status="checked",
        sentence=sentence,
        about=(),
        sections=(ViewSection(title="What would be done", parts=parts),),
    )
