"""Draws the whole picture of one recovery: a title that says what happened, step times around it, and its phases."""

from __future__ import annotations

from deadpool.errors import ConfigError
from deadpool.events.story import Record, Recovery, recoveries
from deadpool.views.picture import steps, timeline
from deadpool.views.picture.axis import in_words
from deadpool.views.picture.svg import Canvas, text_px

WIDTH = 960.0
_LEFT, _RIGHT = 118.0, WIDTH - 28.0


def draw_page(records: list[Record], cause: str | None = None) -> str:
    """Returns an SVG of the recovery with this cause, or of the last one. Raises ConfigError if there is none."""
    recovery = choose(records, cause)
    canvas = Canvas(WIDTH)
    canvas.text(28, 40, title(recovery), size="large")
    canvas.text(28, 62, subtitle(recovery), "quiet")
    top = _draw_steps(canvas, records, recovery, 92.0)
    canvas.text(28, top, "The recovery, phase by phase", size="head")
    timeline.draw(canvas, recovery, _LEFT, _RIGHT, top + 16)
    top += 16 + timeline.height(recovery) + 44
    bottom = timeline.draw_legend(canvas, recovery, _LEFT, _RIGHT, top)
    return canvas.render(bottom + 12, title(recovery))


def choose(records: list[Record], cause: str | None) -> Recovery:
    complete = [each for each in recoveries(records) if each.first_step_s is not None]
    found = [each for each in complete if cause in (None, each.cause)]
    if not found:
        known = ", ".join(each.cause for each in complete) or "none"
        wanted = f"recovery from {cause}" if cause else "recovery"
        raise ConfigError(f"the run has no completed {wanted} to draw; completed recoveries: {known}")
    return found[-1]


def title(recovery: Recovery) -> str:
    assert recovery.first_step_s is not None
    return f"{_victim(recovery)}: {in_words(recovery.first_step_s)} until every rank had done a new step"


def subtitle(recovery: Recovery) -> str:
    redone = recovery.lost_steps
    ranks = len({r["rank"] for r in recovery.records if r["what"] == "resumed"})
    lost = ", ".join(map(str, recovery.fault["ranks"]))
    return (
        f"{ranks} ranks · rank {lost} lost, resumed at step {recovery.resume_step} · "
        f"{redone or 'no'} completed step{'' if redone == 1 else 's'} done again · {recovery.cause}"
    )


def _victim(recovery: Recovery) -> str:
    """Says "killed" if the first record of the recovery is an injected fault."""
    first, fault = recovery.records[0], recovery.fault
    did = "killed" if first["what"] in ("signal_sent", "injected") else "lost"
    return f"Rank {fault['rank']} {did}" if fault.get("rank") is not None else f"Node {fault['node']} {did}"


def _draw_steps(canvas: Canvas, records: list[Record], recovery: Recovery, top: float) -> float:
    """Draws the step times and returns where the next panel begins."""
    canvas.text(28, top, "Step time", size="head")
    left = _LEFT
    found = steps.read_steps(records, recovery)
    if found is None:
        canvas.text(left, top, "this log has no step times around the fault", "quiet", size="small")
        return top + 36
    words = (
        f"from the end of one step to the end of the next; median before the fault (dashed) {in_words(found.usual_s)}"
    )
    canvas.text(left, top, words, "quiet", size="small")
    _draw_key(canvas, recovery, top)
    steps.draw(canvas, found, recovery, _LEFT, _RIGHT, top + 26)
    return top + 26 + steps.HEIGHT + 54


def _draw_key(canvas: Canvas, recovery: Recovery, y: float) -> None:
    """Draws the legend of colours, from the right to the left."""
    x = _RIGHT
    lost = ", ".join(map(str, recovery.fault["ranks"]))
    for words, colour in ((f"rank {lost}, taken over", "newcomer"), ("survivors", "survivor")):
        canvas.text(x, y, words, "quiet", size="small", anchor="end")
        x -= text_px(words) * 0.92 + 10
        canvas.dot(x, y - 4, 4.0, colour)
        x -= 18
