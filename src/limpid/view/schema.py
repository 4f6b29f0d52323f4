"""The JSON Schema of what the page is sent, which its TypeScript types are made from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from limpid.operations.document import RecordingDocument
from limpid.operations.what_if_document import AgainDocument, FormatsDocument
from limpid.tracing.document import VERSION
from limpid.tracing.schema import json_schema
from limpid.view.documents.compare import ComparedDocument, WhatIfDocument
from limpid.view.documents.equations import EquationsView
from limpid.view.documents.given import GivenDocument
from limpid.view.documents.job import ErrorDocument, JobDocument
from limpid.view.documents.learn import LEARN_DOCUMENTS
from limpid.view.documents.lens import LensView
from limpid.view.documents.plan import PlanDocument, PlanForm, PlanLayouts
from limpid.view.documents.play import PlayDocument
from limpid.view.documents.runs import MetricsDocument, RunList, RunOverview, StateDocument
from limpid.view.documents.step import EntryView, FindingsView, OverSteps, StepView
from limpid.view.questions import QUESTIONS

DOCUMENTS = (
    RunList, RunOverview, MetricsDocument, StateDocument, StepView, EntryView, EquationsView, JobDocument,
    ErrorDocument, PlayDocument, PlanDocument, PlanForm, PlanLayouts, ComparedDocument, WhatIfDocument, LensView,
    OverSteps, FindingsView, GivenDocument, RecordingDocument, AgainDocument, FormatsDocument,
)  # fmt: skip
FILE = Path(__file__).with_name("view.schema.json")


def view_schema() -> dict[str, Any]:
    """The schema of every document and question; the list of runs is the root."""
    return json_schema((*DOCUMENTS, *LEARN_DOCUMENTS, *QUESTIONS), "What limpid serve sends, and is asked", VERSION)


def written() -> str:
    """The text of the schema file."""
    return json.dumps(view_schema(), indent=1, ensure_ascii=False) + "\n"
