"""The tables of a view for a spreadsheet: numbers in the units of their columns, not rounded."""

from dataclasses import replace

from kv_cache.view.parts import BarChart, Cell, Figure, FlowDiagram, IntervalChart, Table, View


def tables(view: View) -> list[Table]:
    """All tables, and the points of each figure, each with a title."""
    return [
        replace(table, title=table.title or section.title)
        for section in view.sections
        for part in section.parts
        if isinstance(part, Table | Figure | BarChart | IntervalChart | FlowDiagram)
        for table in [part if isinstance(part, Table) else part.table()]
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
