"""The laugh test: 107 questions whose answer an expert accepts, 64 mistakes that `explain` finds.

What is right stands in questions.toml and mistakes.toml, and in further_questions.toml and further_mistakes.toml, with
the words that they are written in.
"""

import contextlib
import io
import json
import operator
import re
import shlex
import tomllib
from pathlib import Path

import pytest

from shardwise.cli.main import main

HERE = Path(__file__).parent
QUESTIONS = tomllib.loads((HERE / "questions.toml").read_text(encoding="utf-8"))
FURTHER = tomllib.loads((HERE / "further_questions.toml").read_text(encoding="utf-8"))
FURTHER_MISTAKES = tomllib.loads((HERE / "further_mistakes.toml").read_text(encoding="utf-8"))
MISTAKES = tomllib.loads((HERE / "mistakes.toml").read_text(encoding="utf-8"))
GIB = 2**30
COMPARE = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "in": lambda found, allowed: str(found) in str(allowed).split(","),
}


def cases(table, name):
    """One test for each entry, those that are not right yet as strict expected failures."""
    later = pytest.mark.xfail(strict=True, raises=AssertionError, reason="not yet")
    return [
        pytest.param(entry, id=entry["id"], marks=[later] if entry["id"] in table["not_yet"] else [])
        for entry in table[name]
    ]


def said(words):
    """The exit code of a command and the object that it prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exit_code = main([*words, "--json"])
    return exit_code, json.loads(printed.getvalue())


def read_value(text):
    """A number, true, false or a word."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def broken(conditions, facts):
    """Those of some conditions that do not hold, each with what was found; a field that is not there breaks its own."""
    missed = []
    for condition in conditions:
        field, symbol, value = condition.split()
        found = facts.get(field)
        if found is None or not COMPARE[symbol](found, value if symbol == "in" else read_value(value)):
            missed.append(f"{condition} (found {found})")
    return missed


def facts_of(plan, prediction):
    """Every field of a plan beside what is derived from it and from its prediction."""
    layout, recipe, cluster, memory = plan["layout"], plan["recipe"], plan["cluster"], prediction["memory"]
    dp = layout["dp_replicate"] * layout["dp_shard"]
    model_parallel = layout["tp"] * layout["cp"] * layout["pp"]
    needed, capacity = memory["needed_bytes"], memory["capacity_bytes"]
    fit = "safely" if needed * memory["high_fraction"] <= capacity else "edge"
    return {
        **cluster,
        **recipe,
        **layout,
        **prediction["time"],
        **prediction["throughput"],
        **prediction.get("cost", {}),
        "engine": plan["engine"],
        "dp": dp,
        "model_parallel": model_parallel,
        "num_gpus": dp * model_parallel,
        "even_stages": len(set(layout.get("stage_layers") or [0])) == 1,
        "batch_tokens": recipe["seq_len"] * recipe["global_batch_size"],
        "fit": fit if prediction["fits"] else "no",
        "spare_gib": (capacity - needed) / GIB,
    }


def rows_of(answer):
    """The recommended row, then every other row that is shown."""
    if "clusters" in answer:
        return [row["best"] for row in answer["clusters"] if row["is_recommended"]]
    shown = [*answer["plans"], *answer.get("pareto", ())]
    return [answer["recommended"], *shown] if "recommended" in answer else shown


def num_moved(facts):
    return (facts["offload"] != "none") + facts["activation_offload"]


def recommendation(answer, laughs=()):
    """Facts of the recommended plan, also about the plans that stand beside it and are neither laughed at nor move
    more to the host."""
    rows = [facts_of(row["plan"], row["prediction"]) for row in rows_of(answer)]
    best = rows[0]
    serious = [row for row in rows if all(broken(laugh["when"], row) for laugh in laughs)]
    safe = [row["step_s"] for row in serious if row["fit"] == "safely" and num_moved(row) <= num_moved(best)]
    slower = 100 * (best["step_s"] / min(safe) - 1) if safe else 0.0  # nothing safe is faster
    return {**best, "slower_percent": slower, "alternatives": len(answer.get("plans", rows))}


def offers_of(answer):
    """Facts of every change that is offered; only its plan and its step are known of it."""
    changes = (answer.get("what_if") or {}).get("changes", ())
    for change in changes:
        plan = change.get("plan") or {}
        yield {**plan.get("recipe", {}), **plan.get("layout", {}), **change}


@pytest.mark.runs
@pytest.mark.parametrize("question", [*cases(QUESTIONS, "question"), *cases(FURTHER, "question")])
def test_an_expert_accepts_the_answer(question):
    words = shlex.split(question["command"])[1:]
    exit_code, answer = said(words if "offers" in question else [*words, "--no-what-if"])
    if "refuses" in question:
        assert exit_code == 2
        assert answer["code"].startswith(question["refuses"])
        return
    assert exit_code == 0, answer.get("error", "no plan")
    facts = recommendation(answer, question["laughs"])
    laughs = [laugh["because"] for laugh in question["laughs"] if not broken(laugh["when"], facts)]
    missed = [broken(accepted, facts) for accepted in question["accepts"]]
    offers = list(offers_of(answer))
    not_offered = [wanted for wanted in question.get("offers", ()) if all(broken(wanted, offer) for offer in offers)]
    assert not laughs
    assert min(missed, key=len) == []
    assert broken(question.get("always", QUESTIONS["defaults"]["always"]), facts) == []
    assert not_offered == []


@pytest.mark.parametrize("mistake", [*cases(MISTAKES, "mistake"), *cases(FURTHER_MISTAKES, "mistake")])
def test_explain_finds_a_well_known_mistake(mistake, tmp_path):
    exit_code, answer = explained(mistake, tmp_path)
    if exit_code == 2:
        found, fixes = [f"{answer['code']} {answer['error']}"], answer["fix"]
        assert re.search(r"^[a-z]+-[a-z-]+", answer["code"])
    else:
        found, fixes = findings_of(answer, mistake["finding"])
    assert any(has_all(mistake["finding"], text) for text in found)
    assert any(re.search(rf"(?<!\w){fix}(?![\w.])", fixes) for fix in mistake["fix"]), fixes


def explained(mistake, folder):
    path = folder / "plan.json"
    path.write_text(json.dumps(mistake["plan"]), encoding="utf-8")
    return said(["explain", str(path)])


@pytest.mark.parametrize("mistake", cases(FURTHER_MISTAKES, "mistake"))
def test_the_fix_of_a_mistake_stands_first(mistake, tmp_path):
    """In the recommended plan, the first change or the first warning; or the plan has a fault that costs more."""
    exit_code, answer = explained(mistake, tmp_path)
    if exit_code == 2:
        firsts = [answer["fix"]]
    else:
        warnings = [one["suggestion"] for one in answer["findings"] if one["topic"] == "caution" and one["suggestion"]]
        edits = [change for change in (answer["best"], *answer["changes"][:1]) if change]
        firsts = [*(one["edit"] for one in edits), *warnings[:1]]
    found = any(re.search(rf"(?<!\w){fix}(?![\w.])", text) for fix in mistake["fix"] for text in firsts)
    assert found == (mistake["id"] not in FURTHER_MISTAKES["second"]), firsts


def findings_of(answer, patterns):
    """The findings that fit, and everything that they and the predicted changes propose."""
    fitting = [finding for finding in answer["findings"] if has_all(patterns, words_of(finding))]
    edits = [change["edit"] for change in answer["changes"]]
    return [words_of(one) for one in fitting], "; ".join([*(one["suggestion"] for one in fitting), *edits])


def words_of(finding):
    return f"{finding['claim']} {finding['because']} {finding['suggestion']}"


def has_all(patterns, text):
    return all(re.search(pattern, text, re.IGNORECASE) for pattern in patterns)


def test_the_tables_are_whole():
    """Forty, 67 and thirty, at least 25 with a published layout, and nothing on a list that is not asked."""
    questions, mistakes = [*QUESTIONS["question"], *FURTHER["question"]], MISTAKES["mistake"]
    published = [one for one in questions if "source" in one]
    assert (len(QUESTIONS["question"]), len(FURTHER["question"]), len(mistakes)) == (40, 67, 30)
    assert len(FURTHER_MISTAKES["mistake"]) == 34
    assert all(one["reason"] for one in FURTHER_MISTAKES["mistake"])
    assert sum("source" in one for one in QUESTIONS["question"]) >= 25
    assert all(one["source"].keys() == {"url", "date", "layout"} for one in published)
    assert all(one["source"].keys() == {"url", "date", "says"} for one in mistakes)
    assert all(one["reason"] for one in questions if "source" not in one)
    for table, name in ((QUESTIONS, "question"), (FURTHER, "question"), (MISTAKES, "mistake")):
        ids = [one["id"] for one in table[name]]
        assert len(set(ids)) == len(ids)
        assert set(table["not_yet"]) <= set(ids)


def test_a_condition_can_fail():
    facts = {"tp": 8, "offload": "none", "compile": True, "step_s": 1.5}
    assert broken(["tp in 4,8", "offload == none", "compile == true", "step_s < 2"], facts) == []
    assert broken(["tp <= 4", "offload != none", "compile == false", "pp == 1"], facts) == [
        "tp <= 4 (found 8)",
        "offload != none (found none)",
        "compile == false (found True)",
        "pp == 1 (found None)",
    ]
