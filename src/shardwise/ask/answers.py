"""The answers that functions of ``shardwise`` return: records, with their text, their JSON and a notebook's page."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from shardwise.model import ModelSpec
from shardwise.plan import Plan
from shardwise.prediction import CostPrediction, MemoryPrediction, Prediction, Throughput, TimePrediction

if TYPE_CHECKING:  # a prediction and a cost are answered without the search and the explanations
    from shardwise.explain.judgement import Judgement
    from shardwise.explain.records import Explanation, Finding, VerifiedChange
    from shardwise.render.run_cost import RunCost
    from shardwise.search import RankedPlan, SearchResult

__all__ = ["Answer", "CostAnswer", "ExplainAnswer", "JudgeAnswer", "PlanAnswer", "PredictAnswer"]


class Answer(ABC):
    """An answer prints its first lines; ``text()`` is what the command prints, ``to_dict()`` its JSON."""

    __slots__ = ()

    @abstractmethod
    def text(self) -> str:
        """Return the text that the command of the same name prints."""

    @abstractmethod
    def to_dict(self) -> dict[str, object]:
        """Return the object that the command of the same name prints with ``--json``."""

    def picture(self) -> str:
        """Return an SVG picture, which a notebook shows above the text; empty where an answer has none."""
        return ""

    def __repr__(self) -> str:
        return self.text().strip("\n").partition("\n\n")[0]

    def _repr_html_(self) -> str:
        """A notebook's rendering: the picture and the text, without scripts or styles of the page around it."""
        return f"{self.picture()}<pre>{escape(self.text())}</pre>"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PredictAnswer(Answer):
    """The memory, step time and cost of a plan."""

    plan: Plan
    prediction: Prediction
    assumed: frozenset[str] = frozenset()
    """The fields of the question that nobody gave, which its text marks with a star."""

    @property
    def fits(self) -> bool:
        """Whether the plan fits the memory of the devices and of their hosts."""
        return self.prediction.fits

    @property
    def memory(self) -> MemoryPrediction:
        """The bytes of every component of device memory, pipeline stage by pipeline stage."""
        return self.prediction.memory

    @property
    def time(self) -> TimePrediction:
        """The seconds of an optimizer step and of its parts."""
        return self.prediction.time

    @property
    def throughput(self) -> Throughput:
        """The tokens per second, and the MFU and HFU."""
        return self.prediction.throughput

    @property
    def cost(self) -> CostPrediction | None:
        """The cost of the whole run; ``None`` where the plan does not say how many tokens it trains."""
        return self.prediction.cost

    def text(self) -> str:
        """Return the text that ``shardwise predict`` prints."""
        from shardwise.render.text_prediction import prediction_text

        return prediction_text(plan=self.plan, prediction=self.prediction, assumed=self.assumed)

    def to_dict(self) -> dict[str, object]:
        """Return the prediction as an object of the schema ``shardwise.prediction/1``."""
        from shardwise.render.json_records import prediction_object

        return prediction_object(plan=self.plan, prediction=self.prediction)

    def picture(self) -> str:
        """Return a picture of the memory of every pipeline stage."""
        from shardwise.render.svg_memory import memory_svg

        return memory_svg(self.prediction.memory, title="Device memory per pipeline stage")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PlanAnswer(Answer):
    """The recommended plan, and the others in order of preference."""

    result: "SearchResult"
    assumed: frozenset[str] = frozenset()
    """The fields of the question that nobody gave, which its text marks with a star."""

    @property
    def plans(self) -> "tuple[RankedPlan, ...]":
        """The plans that were found, each with its prediction, the recommended one first; none where nothing fits."""
        return self.result.plans

    @property
    def plan(self) -> Plan:
        """The recommended plan.

        Raises:
            NoPlanError: nothing fits, or nothing meets a deadline or a budget.
        """
        return self._best().plan

    @property
    def prediction(self) -> Prediction:
        """The prediction of the recommended plan."""
        return self._best().prediction

    def save(self, path: str | Path, *, force: bool = False) -> Path:
        """Write the recommended plan as a plan file."""
        from shardwise.ask.plans import save_plan

        return save_plan(self.plan, path, force=force)

    def text(self) -> str:
        """Return the first screen that ``shardwise plan`` prints."""
        from shardwise.ask.found import search_screen

        return search_screen(self.result, assumed=self.assumed)

    def to_dict(self) -> dict[str, object]:
        """Return the result of the search as an object of the schema ``shardwise.search/1``."""
        from shardwise.render.json_answers import search_object

        return search_object(self.result)

    def __repr__(self) -> str:
        paragraphs = self.text().strip("\n").split("\n\n")
        return "\n".join(paragraphs[:2])

    def _best(self) -> "RankedPlan":
        from shardwise.ask.found import no_plan

        if not self.result.plans:
            raise no_plan(self.result)
        return self.result.plans[0]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ExplainAnswer(Answer):
    """Why a plan fits or not, what dominates, and changes that were each predicted again."""

    explanation: "Explanation"
    assumed: frozenset[str] = frozenset()
    """The fields of the question that nobody gave, which its text marks with a star."""

    @property
    def plan(self) -> Plan:
        """The plan that is explained."""
        return self.explanation.plan

    @property
    def prediction(self) -> Prediction:
        """The prediction of that plan; every number of a finding is one of its fields."""
        return self.explanation.prediction

    @property
    def findings(self) -> "tuple[Finding, ...]":
        """The findings, each with its claim, its numbers, the reason and what to change."""
        return self.explanation.findings

    @property
    def changes(self) -> "tuple[VerifiedChange, ...]":
        """The changes that would help, each with its own prediction: the smallest first that makes the plan fit, the
        largest gain first of a plan that fits.
        """
        return self.explanation.changes

    @property
    def best(self) -> "VerifiedChange | None":
        """The plan that ``plan`` recommends for the same question; ``None`` where nothing fits."""
        return self.explanation.best

    def text(self) -> str:
        """Return the text that ``shardwise explain`` prints."""
        from shardwise.render.text_explanation import explanation_text

        return explanation_text(self.explanation, assumed=self.assumed)

    def to_dict(self) -> dict[str, object]:
        """Return the explanation as an object of the schema ``shardwise.explanation/1``."""
        from shardwise.render.json_answers import explanation_object

        return explanation_object(self.explanation)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CostAnswer(Answer):
    """GPU-hours, days, dollars and energy of a whole run."""

    run: "RunCost"

    @property
    def cost(self) -> CostPrediction:
        """The GPU-hours, days, dollars and energy, with their bands and assumptions."""
        return self.run.cost

    @property
    def model(self) -> ModelSpec:
        """The model that is trained."""
        return self.run.model

    def text(self) -> str:
        """Return the text that ``shardwise cost`` prints."""
        from shardwise.render.text_cost import run_cost_text

        return run_cost_text(self.run)

    def to_dict(self) -> dict[str, object]:
        """Return the cost as an object of the schema ``shardwise.cost/1``."""
        from shardwise.render.json_answers import run_cost_object

        return run_cost_object(self.run)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class JudgeAnswer(Answer):
    """What a reported rate is, and how far it is from the prediction and from the best published run."""

    judgement: "Judgement"

    def text(self) -> str:
        """Return the text that ``shardwise judge`` prints."""
        from shardwise.render.text_judgement import judgement_text

        return judgement_text(self.judgement)

    def to_dict(self) -> dict[str, object]:
        """Return the judgement as an object of the schema ``shardwise.judgement/1``."""
        from shardwise.render.json_answers import judgement_object

        return judgement_object(self.judgement)
