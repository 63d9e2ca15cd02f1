"""Settings from the environment, under our names and those of similar programs."""

import pytest

from kappa.app.services import graph_config
from kappa.app.settings import BadSetting, load


def test_variables_of_similar_programs_count_where_ours_are_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARALLEL_QUERY_MAX_WORKERS", "3")
    monkeypatch.setenv("PARALLEL_QUERY_TIMEOUT_SECONDS", "45")
    config = graph_config(load())
    assert (config.workers, config.timeout) == (3, 45.0)
    monkeypatch.setenv("KAPPA_GRAPH_WORKERS", "5")
    monkeypatch.setenv("KAPPA_GRAPH_TIMEOUT", "")
    config = graph_config(load())
    assert (config.workers, config.timeout) == (5, 45.0)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PARALLEL_QUERY_MAX_WORKERS", "33"),
        ("PARALLEL_QUERY_MAX_WORKERS", "many"),
        ("PARALLEL_QUERY_TIMEOUT_SECONDS", "4"),
        ("KAPPA_GRAPH_WORKERS", "0"),
        ("KAPPA_PORT", "70000"),
        ("KAPPA_UNSANDBOXED_TOOLS", "true"),
        ("KAPPA_UNSANDBOXED_TOOLS", "YES"),
        ("KAPPA_TOOL_PATHS", "models"),
        ("KAPPA_TOOL_PATHS", "/"),
    ],
)
def test_a_value_that_cannot_be_used_is_named_with_its_variable(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(BadSetting, match=f"^{name} is '{value}'"):
        load()


def test_the_error_names_the_variable_that_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARALLEL_QUERY_MAX_WORKERS", "4")
    monkeypatch.setenv("KAPPA_GRAPH_WORKERS", "99")
    with pytest.raises(BadSetting, match=r"^KAPPA_GRAPH_WORKERS is '99'"):
        load()
