"""A small upstream whose tables change in every way that a schema policy has a word on."""

from __future__ import annotations

from collections.abc import Iterator

from tidegate.workload.upstream import Scripted, Upstream


class Changing(Scripted):
    """Three tables of a few rows; `t` changes its columns, `u` goes and comes back, `p` is swapped.

    Only the first transaction comes before all changes of tables that are there.
    """

    name = "changing"

    def __init__(self) -> None:
        super().__init__(rows=100, seed=0, rate=2000)

    def steps(self, upstream: Upstream) -> Iterator[None]:
        upstream.create_database("d")
        yield
        t = upstream.create_table(
            "d",
            "CREATE TABLE `t` (`id` INT PRIMARY KEY,`v` INT,`note` VARCHAR(9),"
            "`amount` DECIMAL(8,2))",
        )
        yield
        u = upstream.create_table("d", "CREATE TABLE `u` (`id` INT PRIMARY KEY,`n` INT)")
        yield
        p = upstream.create_table(
            "d",
            "CREATE TABLE `p` (`id` INT PRIMARY KEY) PARTITION BY RANGE (`id`) "
            "(PARTITION `p0` VALUES LESS THAN (10))",
        )
        yield
        upstream.begin()
        for row in (
            ("1", "10", "one", "1.50"),
            ("2", "20", "two", "2.50"),
            ("3", "30", "three", "3.50"),
        ):
            upstream.insert(t, row)
        upstream.insert(u, ("1", "1"))
        upstream.insert(u, ("2", "2"))
        upstream.insert(p, ("1",))
        yield

        upstream.alter(t, "ALTER TABLE `t` ADD COLUMN `w` INT DEFAULT 7", lambda row: (*row, "7"))
        yield
        upstream.alter(t, "ALTER TABLE `t` DROP COLUMN `note`", lambda row: (*row[:2], *row[3:]))
        yield
        upstream.alter(t, "ALTER TABLE `t` RENAME COLUMN `v` TO `x`")
        yield
        upstream.alter(t, "ALTER TABLE `t` MODIFY COLUMN `w` BIGINT")
        yield
        rounded = {"1.50": "2", "2.50": "3", "3.50": "4"}
        upstream.alter(
            t,
            "ALTER TABLE `t` MODIFY COLUMN `amount` BIGINT",
            lambda row: (*row[:2], rounded[row[2] or ""], row[3]),
        )
        yield
        upstream.alter(t, "ALTER TABLE `t` RENAME COLUMN `id` TO `k`")
        yield
        upstream.begin()
        upstream.update(t, ("1", "10", "2", "7"), ("1", "11", "5", str(2**40)))
        upstream.delete(t, ("2", "20", "3", "7"))
        upstream.insert(t, ("4", "40", "6", "8"))
        yield

        upstream.truncate(u)
        yield
        upstream.begin()
        upstream.insert(u, ("2", "22"))
        upstream.insert(u, ("3", "33"))
        yield
        upstream.drop(u)
        yield
        u = upstream.create_table(
            "d", "CREATE TABLE `u` (`id` INT PRIMARY KEY,`n` VARCHAR(9),`m` INT)"
        )
        yield
        upstream.begin()
        upstream.insert(u, ("3", "abc", "5"))
        upstream.insert(u, ("4", "4", "6"))
        yield

        upstream.alter(p, "ALTER TABLE `p` EXCHANGE PARTITION `p0` WITH TABLE `elsewhere`")
        yield
        upstream.begin()
        upstream.insert(p, ("2",))
        yield
