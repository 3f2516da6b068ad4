"""The tables of a view for a spreadsheet: numbers in the units of their columns, not rounded."""

from kv_cache.view.parts import Cell, Figure, Table, View


def tables(view: View) -> list[Table]:
    """All tables, and the points of each figure."""
    return [
        part.table() if isinstance(part, Figure) else part
        for part in view.parts
        if isinstance(part, Table | Figure)
    ]


def rows(table: Table) -> list[list[Cell]]:
    """The cells in the units that are shown."""
    return [
        [
            cell if isinstance(cell, str) else column.shown(cell)
            for column, cell in zip(table.columns, row, strict=True)
        ]
        for row in table.rows
    ]
