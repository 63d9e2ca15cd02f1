"""Tool runs, from the request to the artifacts."""

from pathlib import Path

from kappa.engine import Engine
from kappa.engine.testing import drain
from kappa.engine.tools import ArtifactStore, ToolRunStatus, Tools
from tests.engine.tools.conftest import GOOD, script


async def test_a_tool_runs_and_what_it_left_is_kept(engine: Engine, toolbox: Tools, home: Path) -> None:
    await toolbox.register("echo", "1", argv=script(GOOD))
    asked = await toolbox.run("echo", inputs={"a": [1, 2]}, requested_by="ada")
    assert (asked.status, asked.requested_by) == (ToolRunStatus.QUEUED, "ada")
    await drain(engine)
    done = await toolbox.show(asked.id)
    assert (done.status, done.outputs, done.exit_code, done.error_summary) == (
        ToolRunStatus.SUCCEEDED, {"echo": {"a": [1, 2]}}, 0, None,
    )  # fmt: skip
    (artifact,) = await toolbox.artifacts(asked.id)
    assert (artifact.path, artifact.media_type) == ("answer.txt", "text/plain")
    assert ArtifactStore(home / "artifacts").place(artifact.sha256).read_text() == "{'a': [1, 2]}"
    (said,) = await toolbox.logs(asked.id)
    assert (said.stream, said.content) == ("stdout", b"thinking about {'a': [1, 2]}\n")
