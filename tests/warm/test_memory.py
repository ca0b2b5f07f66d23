from penstock.warm.memory import PageBudget, spare_bytes


def test_files_are_kept_until_the_budget_is_used_up() -> None:
    pages = PageBudget(1000)
    assert pages.reserve(700)
    assert not pages.reserve(100)
    assert pages.reserve(50)
    pages.give_back(700)
    assert pages.reserve(700)
    assert pages.passing_bytes == 250


def test_some_memory_can_always_be_spared_here() -> None:
    assert spare_bytes() > 0
