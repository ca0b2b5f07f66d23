from penstock.warm.memory import PageBudget, spare_bytes


def test_files_are_kept_until_the_budget_is_used_up() -> None:
    pages = PageBudget(1000)
    assert pages.keep(1, 700)
    assert not pages.keep(2, 100)
    assert pages.keep(3, 50)
    assert pages.let_go(1) == 700
    assert pages.keep(2, 700)
    assert pages.passing_bytes == 250


def test_a_file_that_two_plans_keep_is_counted_once() -> None:
    pages = PageBudget(1000)
    assert pages.keep(5_000_000, 700)
    assert pages.keep(5_000_000, 700)
    pages.let_go(5_000_000)
    assert pages.is_kept(5_000_000)
    assert not pages.keep(7, 100)
    pages.let_go(5_000_000)
    assert not pages.is_kept(5_000_000)
    assert pages.keep(7, 100)


def test_some_memory_can_always_be_spared_here() -> None:
    assert spare_bytes() > 0
