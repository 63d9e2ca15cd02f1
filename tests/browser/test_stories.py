"""The main stories, walked by somebody with a browser."""

import re
import shlex
from collections.abc import Iterator
from itertools import combinations

import pytest
from playwright.sync_api import Page, expect

from kappa.app.permissions import ROLES
from tests.app.test_web_offers import asked_by
from tests.browser.conftest import PASSWORD, PHONE, Town, Visit, Visitor


def badge(page: Page, text: str) -> None:
    expect(page.locator(".title .badge")).to_have_text(text)


def test_somebody_signs_in_and_out(visit: Visit, town: Town) -> None:
    visitor = visit(None)
    town.hire("walker", "read_only")
    page = visitor.go("/ui/jobs?state=live")
    expect(page).to_have_title("Sign in · Kappa")
    visitor.expected.add(401)
    page.get_by_label("Name").fill("walker")
    page.get_by_label("Password").fill("not the password")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_have_text("name and password don't fit")
    page.get_by_label("Password").fill(PASSWORD)
    page.keyboard.press("Enter")
    page.wait_for_url("**/ui/jobs?state=live")
    page.get_by_role("button", name="Sign out").click()
    page.wait_for_url("**/ui/sign-in")
    page.goto(town.up.url + "/ui/account")
    expect(page).to_have_title("Sign in · Kappa")


def test_the_operator_signs_in_with_the_token(visit: Visit, town: Town) -> None:
    page = visit(None).go("/ui/sign-in")
    page.get_by_text("With a token instead").click()
    page.get_by_label("Token").fill(town.up.token)
    page.get_by_role("button", name="Sign in with the token").click()
    page.wait_for_url("**/ui/")
    expect(page.get_by_role("link", name="operator")).to_be_visible()


def test_a_job_is_watched_to_its_end_without_reloading(visit: Visit, town: Town) -> None:
    visitor = visit()
    job = town.gated("watched", 2)
    page = visitor.go(f"/ui/jobs/{job}")
    page.evaluate("window.still = true")
    badge(page, "running")
    expect(page.get_by_text("attempt 1 of 1 runs on")).to_be_visible()
    town.open_gate("watched", 1)
    expect(page.get_by_text("through gate 1")).to_be_visible()
    expect(page.locator("progress")).to_have_attribute("value", "0.5000")
    town.open_gate("watched", 2)
    badge(page, "succeeded")
    assert page.evaluate("window.still") is True
    expect(page.locator("[hx-trigger]")).to_have_count(0)


def test_a_job_is_approved_after_a_look_at_its_estimate(visit: Visit, town: Town) -> None:
    job = town.enqueue("costly", {"pages": 7})
    page = visit().go("/ui/")
    page.get_by_role("link", name="Show them").click()
    page.get_by_role("link", name=str(job), exact=True).click()
    badge(page, "awaiting approval")
    expect(page.locator(".ask")).to_contain_text(re.compile(r"dollars\s*7"))
    page.get_by_role("button", name="Approve").click()
    badge(page, "succeeded")
    expect(page.get_by_text("approved by a-platform-admin")).to_be_visible()


def test_a_job_is_rejected_from_the_list(visit: Visit, town: Town) -> None:
    job = town.enqueue("costly", {"pages": 1})
    visitor = visit()
    page = visitor.go("/ui/jobs?state=awaiting_approval")
    page.get_by_role("button", name=f"Reject job {job}").click()
    page.wait_for_url("**/ui/jobs?state=awaiting_approval")
    expect(page.get_by_text("No jobs like that.")).to_be_visible()
    visitor.go(f"/ui/jobs/{job}")
    badge(page, "cancelled")
    expect(page.get_by_text("rejected")).to_be_visible()


def test_a_running_job_is_cancelled(visit: Visit, town: Town) -> None:
    job = town.gated("cancelled", 1)
    page = visit().go(f"/ui/jobs/{job}")
    badge(page, "running")
    page.once("dialog", lambda dialog: dialog.dismiss())
    page.get_by_role("button", name="Cancel job").click()
    badge(page, "running")
    page.once("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Cancel job").click()
    badge(page, "cancelled")


def test_a_schedule_is_made_edited_run_now_paused_and_deleted(visit: Visit, town: Town) -> None:
    visitor = visit()
    page = visitor.go("/ui/")
    page.get_by_role("link", name="Schedules").click()
    page.get_by_label("Name").fill("walked")
    page.get_by_label("When").fill("every day")
    page.get_by_label("Time zone").fill("Europe/Berlin")
    page.get_by_label("Kind").fill("self_test")
    page.get_by_label("Payload").fill('{"steps": 1}')
    visitor.expected.add(422)
    page.get_by_role("button", name="Add").click()
    expect(page.get_by_role("alert")).to_contain_text("it has five fields")
    assert visitor.serious() == []
    page.get_by_label("When").fill("30 2 1 1 *")
    page.get_by_role("button", name="Add").click()
    page.wait_for_url("**/ui/schedules/walked")
    badge(page, "on")
    expect(page.locator("dl.facts time")).to_have_count(5)
    expect(page.locator("dl.facts")).to_contain_text("-01-01 01:30:00 UTC")
    page.get_by_label("When").fill("30 2 1 7 *")
    page.get_by_role("button", name="Save").click()
    expect(page.locator("dl.facts")).to_contain_text("-07-01 00:30:00 UTC")
    page.get_by_role("button", name="Run now").click()
    page.wait_for_url(re.compile(r"/ui/jobs/\d+$"))
    badge(page, "succeeded")
    visitor.go("/ui/schedules")
    page.get_by_role("button", name="Pause walked").click()
    expect(page.get_by_role("row", name="walked")).to_contain_text("paused")
    page.get_by_role("button", name="Resume walked").click()
    expect(page.get_by_role("button", name="Pause walked")).to_be_visible()
    page.get_by_role("link", name="walked").click()
    page.once("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Delete").click()
    page.wait_for_url("**/ui/schedules")
    expect(page.get_by_text("walked")).to_have_count(0)


def test_a_failed_job_is_run_again(visit: Visit, town: Town) -> None:
    job = town.ask("POST", "/jobs", {"kind": "self_test", "payload": {"steps": 1, "fail": True}, "max_attempts": 1})[
        "id"
    ]
    page = visit().go(f"/ui/jobs/{job}")
    badge(page, "failed")
    expect(page.locator("#traceback + pre")).to_contain_text("RuntimeError")
    page.get_by_role("button", name="Run again").click()
    page.wait_for_url(re.compile(rf"/ui/jobs/(?!{job}$)\d+$"))
    expect(page.get_by_role("link", name=f"job {job}", exact=True)).to_be_visible()


def test_jobs_are_filtered_and_paged(visit: Visit, town: Town) -> None:
    for _ in range(52):
        town.enqueue("self_test", {"steps": 1})
    page = visit().go("/ui/jobs")
    page.get_by_label("Kind").fill("self_test")
    page.get_by_role("button", name="Filter").click()
    rows = page.locator("table.jobs tbody tr")
    expect(rows).to_have_count(50)
    first = rows.first.locator("a").inner_text()
    page.get_by_role("link", name="Next page").click()
    expect(rows.first.locator("a")).not_to_have_text(first)
    assert set(rows.locator("td:nth-child(2)").all_inner_texts()) == {"self_test · checks"}


@pytest.fixture
def lanes_as_before(town: Town) -> Iterator[None]:
    yield
    town.ask("PATCH", "/admin/workers/lanes/gates", {"max_slots": 4, "enabled": True})


@pytest.mark.usefixtures("lanes_as_before")
def test_a_lane_is_edited_and_drained(visit: Visit, town: Town) -> None:
    visitor = visit()
    visitor.expected.add(422)
    page = visitor.go("/ui/lanes")
    page.get_by_role("link", name="gates", exact=True).click()
    page.locator("[name=max_slots]").fill("17")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("alert")).to_contain_text("a thread lane has 1 to 16 slots")
    expect(page.locator("[name=max_slots]")).to_have_value("17")
    page.locator("[name=max_slots]").fill("2")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_text("0 of 2 slots")).to_be_visible()
    page.get_by_role("button", name="Drain").click()
    badge(page, "drained")
    job = town.gated("drained", 1)
    expect(page.get_by_role("link", name="1 queued")).to_be_visible()
    page.goto(town.up.url + "/ui/")
    expect(page.locator(".alarms .warn")).to_contain_text("the lane gates is drained, and 1 job waits")
    page.get_by_role("link", name="Open the lane gates").click()
    town.open_gate("drained", 1)
    page.get_by_role("button", name="Resume").click()
    badge(page, "works")
    page.goto(f"{town.up.url}/ui/jobs/{job}")
    badge(page, "succeeded")


def test_a_concept_is_searched_and_its_neighbourhood_grown(visit: Visit, town: Town) -> None:
    page = visit("read_only").go("/ui/graph")
    page.get_by_role("searchbox").press_sequentially("otter")
    page.get_by_role("link", name="Otter", exact=True).click()
    expect(page.get_by_role("heading", name="Otter", level=1)).to_be_visible()
    nodes = page.locator(".drawing .node")
    expect(nodes).to_have_count(5)
    page.locator(f'.node[data-id="{town.concepts["River"]}"]').click()
    expect(nodes).to_have_count(7)
    # The same with keys alone: Salmon came along with the river.
    page.locator(f'.node[data-id="{town.concepts["Salmon"]}"]').focus()
    page.keyboard.press("Enter")
    expect(page.locator(f'.node[data-id="{town.concepts["Dam"]}"]')).to_be_visible()
    page.get_by_role("link", name="Open “Salmon”").click()
    expect(page.get_by_role("heading", name="Salmon", level=1)).to_be_visible()


def test_evidence_is_marked_in_its_source(visit: Visit, town: Town) -> None:
    page = visit("read_only").go(f"/ui/graph/concepts/{town.concepts['Whale']}")
    expect(page.locator("blockquote")).to_have_text("Whales live in the sea")
    page.get_by_role("link", name="the-life-of-a-river.txt").click()
    expect(page.locator("mark")).to_have_text("Whales live in the sea")
    expect(page.locator(".source")).to_contain_text("Dams prevent salmon from coming back.")


def test_a_path_is_found_and_drawn_with_its_surroundings(visit: Visit, town: Town) -> None:
    page = visit("read_only").go("/ui/graph/path")
    page.get_by_label("From").press_sequentially("ott")
    expect(page.locator("#from-options option")).to_have_attribute("value", "Otter")
    page.get_by_label("From").fill("Otter")
    page.get_by_label("To").fill("Krill")
    page.keyboard.press("Enter")
    expect(page.locator(".paths li").first).to_have_text(
        re.compile(r"Otter\s+lives in\s+→\s+River\s+flows into\s+→\s+Sea\s+←\s+lives in\s+Whale\s+eats\s+→\s+Krill")
    )
    expect(page.locator(f'.node[data-id="{town.concepts["Heron"]}"]')).to_be_visible()
    on = page.locator(".drawing .node.on")
    labels = set(on.locator("text").all_text_contents())
    assert {"Otter", "Krill", "Whale", "Sea"} <= labels
    assert page.locator("[data-names] .named").count() >= 4
    assert collisions(page) == []


def collisions(page: Page) -> list[tuple[str, str]]:
    """Names in a drawing of which one hides another."""
    shown = page.locator(".drawing .node text, [data-names] .named").evaluate_all(
        """all => all.map(one => {
             const { x, y, width, height } = one.getBoundingClientRect();
             return [one.textContent, x, y, width, height];
           })"""
    )
    return [
        (one[0], other[0])
        for one, other in combinations(shown, 2)
        if one[1] < other[1] + other[3] - 1
        and other[1] < one[1] + one[3] - 1
        and one[2] < other[2] + other[4] - 1
        and other[2] < one[2] + one[4] - 1
    ]


def test_a_relation_that_has_no_room_for_its_name_tells_it_when_it_is_pointed_at(visit: Visit, town: Town) -> None:
    page = visit("read_only").go(f"/ui/graph/concepts/{town.concepts['Otter']}")
    expect(page.locator(".drawing .node")).to_have_count(5)
    far = page.locator("[data-names] text:not(.named)").first
    expect(far).to_have_css("opacity", "0")
    name = far.text_content()
    place = page.locator("[data-names] text").evaluate_all(
        "(all, name) => all.findIndex(o => o.textContent === name && !o.classList.contains('named'))", name
    )
    page.locator(".drawing .edge").nth(place).dispatch_event("pointerenter")
    expect(page.locator("[data-names] text").nth(place)).to_have_css("opacity", "1")


def test_a_row_of_pages_that_goes_on_fades_where_it_does(visit: Visit) -> None:
    page = visit(size=PHONE).go("/ui/")
    row = page.get_by_role("navigation", name="Pages").locator("ul")
    expect(row).to_have_class("goes-on")
    row.evaluate("row => { row.scrollLeft = row.scrollWidth }")
    expect(row).to_have_class("goes-before")


def test_a_path_to_nothing_says_so(visit: Visit) -> None:
    visitor = visit("read_only")
    visitor.expected.add(422)
    page = visitor.go("/ui/graph/path?from=Otter&to=Unicorn")
    expect(page.get_by_role("alert")).to_have_text("there is no concept 'Unicorn'")


def test_a_map_is_asked_for_and_seen(visit: Visit, town: Town) -> None:
    page = visit("contributor").go("/ui/graph/map")
    page.get_by_label("Of").select_option("rivers")
    page.get_by_label("By").select_option("pca")
    page.get_by_role("button", name="Draw a new map").click()
    badge(page, "succeeded")
    page.goto(town.up.url + "/ui/graph/map")
    picture = page.locator("img.map")
    expect(picture).to_have_js_property("complete", True)
    assert picture.evaluate("image => image.naturalWidth") > 100
    page.locator(".cards a").first.click()
    expect(page.locator("#related")).to_be_visible()


def test_polarity_is_drawn(visit: Visit) -> None:
    page = visit("read_only").go("/ui/graph/polarity")
    page.get_by_label("Negative pole").fill("Sea")
    page.get_by_label("Positive pole").fill("River")
    page.get_by_role("button", name="Draw").click()
    page.wait_for_url("**/polarity?*")  # and until all of it is there
    place = {
        group.locator("text").text_content(): float(group.locator("circle").get_attribute("cx") or "nan")
        for group in page.locator(".axis.wide g").all()
    }
    assert place["Whale"] < place["Salmon"] < place["Otter"]


def test_a_tool_is_registered_and_run(visit: Visit) -> None:
    page = visit().go("/ui/tools")
    page.get_by_role("link", name="Register a tool").click()
    page.get_by_label("Name").fill("greeter")
    page.get_by_label("Version").fill("1")
    result = '{"contract_version": 1, "status": "succeeded", "outputs": {"said": 1}, "artifacts": [{"path": "a.txt"}]}'
    command = f"echo good day; printf left >output/a.txt; echo {shlex.quote(result)} >result.json"
    page.locator("[name=command]").fill(shlex.join(["sh", "-c", command]))
    page.get_by_role("button", name="Register").click()
    page.get_by_role("button", name="Run", exact=True).click()
    page.wait_for_url("**/ui/runs/*")
    badge(page, "succeeded")
    expect(page.locator("#stdout + pre")).to_have_text("good day\n")
    with page.expect_download() as started:
        page.get_by_role("link", name="a.txt").click()
    assert started.value.path().read_text() == "left"


def test_a_user_is_made_and_given_a_token(visit: Visit) -> None:
    page = visit().go("/ui/people")
    page.get_by_label("Name").fill("newcomer")
    page.get_by_label("contributor").check()
    page.get_by_role("button", name="Make the user").click()
    page.wait_for_url("**/ui/people/newcomer")
    tokens = page.locator("form", has=page.get_by_role("button", name="Make a token"))
    tokens.get_by_label("Name").fill("laptop")
    tokens.get_by_role("button").click()
    expect(page.locator("#secret")).to_have_text(re.compile("^kappa_"))
    assert "kappa_" not in page.url
    page.once("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Revoke the token laptop").click()
    expect(page.get_by_text("revoked")).to_be_visible()


def test_a_read_only_user_sees_no_button_that_it_may_not_press(visit: Visit, town: Town) -> None:
    running, waiting = town.gated("seen", 1), town.enqueue("costly", {"pages": 2})
    visitor: Visitor = visit("read_only", size=PHONE)
    pages = [
        "/ui/", "/ui/jobs", f"/ui/jobs/{running}", f"/ui/jobs/{waiting}", "/ui/tools", "/ui/account", "/ui/graph",
        "/ui/graph?q=river", f"/ui/graph/concepts/{town.concepts['Otter']}", "/ui/graph/path?from=Otter&to=Krill",
        "/ui/graph/polarity?positive=River&negative=Sea", "/ui/graph/map", "/ui/graph/vocabulary", "/ui/ontologies",
    ]  # fmt: skip
    for path in pages:
        page = visitor.go(path)
        forms = page.locator("form").evaluate_all("all => all.map(one => [one.method, one.action])")
        assert [form for form in forms if asked_by(form[0].upper(), form[1]) not in {None, *ROLES["read_only"]}] == []
        assert page.get_by_role("link", name="Lanes").count() == 0
    visitor.expected.add(403)
    page = visitor.go("/ui/lanes")
    expect(page.get_by_role("main")).to_contain_text("a-read-only lacks the permission workers:view")
    town.open_gate("seen", 1)


def test_pages_work_without_scripts(visit: Visit, town: Town) -> None:
    job = town.enqueue("costly", {"pages": 3})
    page = visit(java_script_enabled=False).go(f"/ui/jobs/{job}")
    page.get_by_role("button", name="Approve").click()
    expect(page.get_by_text("approved by")).to_be_visible()
    page.goto(town.up.url + "/ui/graph?q=otter")
    page.get_by_role("link", name="Otter", exact=True).click()
    expect(page.locator("#related")).to_be_visible()
    page.get_by_role("link", name="River", exact=True).first.click()
    expect(page.get_by_role("heading", name="River", level=1)).to_be_visible()
